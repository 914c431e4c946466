"""`metrics.csv`: one row per round and scope (overall, group, site). Holds no times, so equal runs give equal bytes."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable
from pathlib import Path

from common.metrics import Metrics
from server.history import run_directory
from server.history.event_log import EventLog, read_events
from server.history.events import Event, RoundFinished, RoundTrained, RunEnded, RunResumed, RunStarted

COLUMNS = (
    "round", "scope", "name", "group", "sites", "samples", "accuracy", "macro_f1", "auc", "loss",
    "mean_site_accuracy", "worst_tenth_accuracy", "train_loss",
    "shared_accuracy", "mean_site_shared_accuracy", "held_accuracy", "mean_site_held_accuracy",
)  # fmt: skip


_log = logging.getLogger("coterie")


class MetricsTable:
    """Appends the rows of each finished round."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / run_directory.METRICS
        self._file = run_directory.Appended(self._path)

    def hear(self, event: Event) -> None:
        """Write the header at the start and a block of rows per round."""
        match event:
            case RunStarted():
                # A run that was killed before its first checkpoint starts again in the same directory.
                self._path.unlink(missing_ok=True)
                self._append([COLUMNS])
            case RunResumed(round_number=done):
                self._rebuild(done)
            case RoundFinished():
                self._append(_rows(event))
            case RunEnded():
                # What a full disk refused may fit in now.
                self._append([])

    def sync(self) -> None:
        """Have all rows on disk, or raise an OSError."""
        self._file.sync()

    def _rebuild(self, done: int) -> None:
        """Write the table anew from the log: what the file holds may be torn, gone, or ahead of the checkpoint."""
        try:
            log = read_events(self._path.parent).resumed(done)
        except OSError:
            log = EventLog()
        missing = sorted(set(range(1, done + 1)) - {event.round_number for event in log.of(RoundTrained)})
        if missing or log.unreadable:
            _log.warning(
                "%s lacks rounds in %s, because the log does (rounds not found: %s; unreadable lines: %d)",
                self._path.name, self._path.parent, ", ".join(map(str, missing)) or "none", log.unreadable,
            )  # fmt: skip
        rows = [row for event in log.of(RoundFinished) for row in _rows(event)]
        self._file.replace(_block([COLUMNS, *rows]))

    def _append(self, rows: Iterable[tuple[object, ...]]) -> None:
        # One block per round: a crash leaves whole rounds, not half rows.
        self._file.append(_block(rows))


def _block(rows: Iterable[tuple[object, ...]]) -> str:
    block = io.StringIO()
    csv.writer(block, lineterminator="\n").writerows(rows)
    return block.getvalue()


def _rows(event: RoundFinished) -> list[tuple[object, ...]]:
    beside = (event.shared, event.held)
    others = [cell for one in beside for cell in (("", "") if one is None else (one.accuracy, one.mean_site_accuracy))]
    spread = (event.mean_site_accuracy, event.worst_tenth_accuracy, event.train_loss, *others)
    rows: list[tuple[object, ...]] = []
    rows.append((event.round_number, "overall", "", "", len(event.sites), *_values(event.overall), *spread))
    for group, metrics in event.groups.items():
        size = sum(event.labels[site] == group for site in event.sites)
        rows.append((event.round_number, "group", group, group, size, *_values(metrics), *[""] * 7))
    for site, metrics in event.sites.items():
        shared, held = ("" if one is None else one.sites.get(site, "") for one in beside)
        figures = ("", "", "", shared, "", held, "")
        rows.append((event.round_number, "site", site, event.labels[site], 1, *_values(metrics), *figures))
    return rows


def _values(metrics: Metrics) -> tuple[object, ...]:
    return (metrics.count, metrics.accuracy, metrics.macro_f1, metrics.auc, metrics.loss)
