"""The sub-commands of `coterie`, one file each."""
