"""One round, and what comes after the last."""
