"""What is not the algorithm: each listener hears the events of a run and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from common.config import SettingsError
from server.history.events import Listener
from server.listeners.artifacts import Artifacts
from server.listeners.journal import Journal
from server.listeners.progress import progress
from server.listeners.report import Report
from server.listeners.summary import Summary
from server.listeners.table import MetricsTable


def run_listeners(directory: Path, track: Sequence[str] = ()) -> list[Listener]:
    """Everything that records a run in its directory, the trackers named in `track`, and the display."""
    # Artifacts after those who write for other programs: when run.json says that a run is finished, all of that is
    # there. The page is made from these files, trackers may take it along, and the display speaks last.
    return [
        Journal(directory), MetricsTable(directory), Summary(directory), Artifacts(directory), Report(directory),
        *(_TRACKERS[name](directory) for name in track), progress(directory),
    ]  # fmt: skip


def _tensorboard(directory: Path) -> Listener:
    from server.listeners.tensorboard import TensorBoard

    return TensorBoard(directory)


def _mlflow(directory: Path) -> Listener:
    from server.listeners.mlflow import MLflow

    return MLflow(directory)


# Imported only when asked for: each is an extra of the same name, which is also the package it needs.
_TRACKERS: dict[str, Callable[[Path], Listener]] = {"tensorboard": _tensorboard, "mlflow": _mlflow}


def require_trackers(track: Sequence[str]) -> None:
    """Raise unless every tracker is known and its extra is installed."""
    for name in track:
        if name not in _TRACKERS:
            raise SettingsError(f"track = {name!r} is not known: it takes {', '.join(_TRACKERS)}")
        if find_spec(name) is None:
            raise SettingsError(f"track = {name!r} needs its extra: pip install 'coterie[{name}]'")
