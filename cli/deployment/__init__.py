"""What a federation of separate machines needs: addresses, certificates, start files, supervised processes."""
