"""What is not the algorithm: each listener hears the events of a run and changes nothing."""

from __future__ import annotations

from pathlib import Path

from common.config import Config
from server import run_directory
from server.events import Listener
from server.listeners.artifacts import Artifacts
from server.listeners.journal import Journal
from server.listeners.progress import progress
from server.listeners.summary import Summary
from server.listeners.table import MetricsTable


def run_listeners(config: Config, directory: Path | None = None) -> list[Listener]:
    """Everything that records a run in its directory, and the display."""
    path = directory or run_directory.create(config)
    return [Journal(path), Artifacts(path), MetricsTable(path), Summary(path), progress(path)]
