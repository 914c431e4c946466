"""What whoever runs a federation, or many simulations, wants to see at a glance."""
