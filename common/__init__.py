"""What both sides must agree on. Imports neither side."""
