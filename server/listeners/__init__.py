"""What is not the algorithm: each listener hears the events of a run and changes nothing."""

from __future__ import annotations

from pathlib import Path

from server.events import Listener
from server.listeners.artifacts import Artifacts
from server.listeners.journal import Journal
from server.listeners.progress import progress
from server.listeners.summary import Summary
from server.listeners.table import MetricsTable


def run_listeners(directory: Path) -> list[Listener]:
    """Everything that records a run in its directory, and the display."""
    # Artifacts after the others: when run.json says that a run is finished, everything else is there.
    return [
        Journal(directory), MetricsTable(directory), Summary(directory), Artifacts(directory), progress(directory),
    ]  # fmt: skip
