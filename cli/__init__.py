"""The `coterie` command."""
