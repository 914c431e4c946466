"""What is not the algorithm: each listener hears the events of a run and changes nothing."""

from __future__ import annotations

from pathlib import Path

from server.events import Listener
from server.listeners.artifacts import Artifacts
from server.listeners.journal import Journal
from server.listeners.progress import progress
from server.listeners.report import Report
from server.listeners.summary import Summary
from server.listeners.table import MetricsTable


def run_listeners(directory: Path) -> list[Listener]:
    """Everything that records a run in its directory, and the display."""
    # Artifacts after those who write for other programs: when run.json says that a run is finished, all of that is
    # there. The page is made from these files, and the display speaks last.
    return [
        Journal(directory), MetricsTable(directory), Summary(directory), Artifacts(directory), Report(directory),
        progress(directory),
    ]  # fmt: skip
