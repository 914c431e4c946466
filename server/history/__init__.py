"""What happened in a run: events, their log, checkpoints, the run directory."""
