"""`metrics.csv`: one row per round and scope (overall, group, site). Holds no times, so equal runs give equal bytes."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from common.metrics import Metrics
from server import run_directory
from server.events import Event, RoundFinished, RunEnded, RunResumed, RunStarted

COLUMNS = (
    "round", "scope", "name", "group", "sites", "samples", "accuracy", "macro_f1", "auc", "loss",
    "mean_site_accuracy", "worst_tenth_accuracy", "train_loss",
)  # fmt: skip


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
            case RunResumed(metrics_bytes=size):
                os.truncate(self._path, size)
            case RoundFinished():
                self._append(_rows(event))
            case RunEnded():
                # What a full disk refused may fit in now.
                self._append([])

    def _append(self, rows: list[tuple[object, ...]]) -> None:
        # One block per round: a crash leaves whole rounds, not half rows.
        block = io.StringIO()
        csv.writer(block, lineterminator="\n").writerows(rows)
        self._file.append(block.getvalue())


def _rows(event: RoundFinished) -> list[tuple[object, ...]]:
    spread = (event.mean_site_accuracy, event.worst_tenth_accuracy, event.train_loss)
    rows: list[tuple[object, ...]] = []
    rows.append((event.round_number, "overall", "", "", len(event.sites), *_values(event.overall), *spread))
    for group, metrics in event.groups.items():
        size = sum(event.labels[site] == group for site in event.sites)
        rows.append((event.round_number, "group", group, group, size, *_values(metrics), "", "", ""))
    for site, metrics in event.sites.items():
        rows.append((event.round_number, "site", site, event.labels[site], 1, *_values(metrics), "", "", ""))
    return rows


def _values(metrics: Metrics) -> tuple[object, ...]:
    return (metrics.count, metrics.accuracy, metrics.macro_f1, metrics.auc, metrics.loss)
