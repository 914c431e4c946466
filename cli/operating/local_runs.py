"""The run directories of this machine, each in a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.lock import is_held
from server.history.event_log import read_events
from server.history.events import RoundTrained
from server.history.run_directory import CHECKPOINTS, LOCK, RUN, SUMMARY


@dataclass(frozen=True)
class LocalRun:
    """A run as its directory tells it; `rounds` are those that were tested, `accuracy` that of the last of them."""

    directory: Path
    method: str
    state: str
    started: str
    rounds: int
    planned: int
    accuracy: float | None
    resumable: bool


def local_runs(folder: Path) -> list[LocalRun]:
    """The runs in a folder and below, the latest first."""
    return sorted(_found(folder), key=lambda run: run.started, reverse=True)


def _found(folder: Path) -> Iterator[LocalRun]:
    for path in folder.rglob(RUN):
        about, summary = _read(path), _read(path.with_name(SUMMARY))
        config = about.get("config")
        if not isinstance(config, dict):
            continue
        final = summary.get("final") if isinstance(summary.get("final"), dict) else {}
        planned, accuracy = config.get("rounds"), final.get("accuracy") if isinstance(final, dict) else None
        state = _state(path.parent, str(about.get("outcome", "?")))
        rounds = summary.get("rounds") if summary else trained(path.parent)
        yield LocalRun(
            path.parent,
            str(config.get("method", "?")),
            state,
            str(about.get("started", ""))[:19].replace("T", " "),
            rounds if isinstance(rounds, int) else 0,
            planned if isinstance(planned, int) else 0,
            accuracy if isinstance(accuracy, float) else None,
            (path.parent / CHECKPOINTS).is_dir(),
        )


def trained(directory: Path) -> int:
    """Rounds of a run that has no summary yet."""
    try:
        return max((event.round_number for event in read_events(directory).of(RoundTrained)), default=0)
    except OSError:
        return 0


def _state(directory: Path, outcome: str) -> str:
    """How it ended; a run that says it is running while nobody works in its directory was cut off."""
    if outcome != "running":
        return outcome
    return "running" if is_held(directory / LOCK) else "cut off"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
