"""What a site answers."""
