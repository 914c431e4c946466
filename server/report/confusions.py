"""Who was taken for what: the sites' confusion matrices in the last round that was tested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.intervals import wilson
from server.history import run_directory
from server.report.counts_file import UnusableCounts, read_counts, whole_numbers

Confusion = NDArray[np.int64]


@dataclass(frozen=True)
class Recall:
    """How many samples of one class are recognised.

    `low` and `high` bound the share (Wilson, 95 %); `mistaken` is the class that most others are taken for, −1: none.
    """

    label: int
    count: int
    hits: int
    low: float
    high: float
    mistaken: int

    @property
    def share(self) -> float:
        """Of the class's samples."""
        return self.hits / self.count


def read_confusions(directory: Path, round_number: int, classes: int) -> dict[str, Confusion]:
    """Each site's matrix int64[C, C], by true (row) and predicted class; nothing where the file is of another round."""
    sites = read_counts(directory / run_directory.CONFUSIONS, "sites", round_number)
    return {name: _matrix(cells, classes) for name, cells in sites.items()}


def _matrix(cells: object, classes: int) -> Confusion:
    matrix = np.zeros((classes, classes), np.int64)
    for truth, predicted, count in whole_numbers(cells, 3):
        if truth >= classes or predicted >= classes or not count:
            raise UnusableCounts(f"a cell is not of {classes} classes")
        matrix[truth, predicted] += count
    return matrix


def recalls(confusion: Confusion) -> list[Recall]:
    """Of every class that has test samples."""
    found = []
    for label, row in enumerate(confusion):
        count, hits = int(row.sum()), int(row[label])
        if not count:
            continue
        others = row.copy()
        others[label] = 0
        mistaken = int(others.argmax()) if others.any() else -1
        found.append(Recall(label, count, hits, *wilson(hits, count), mistaken))
    return found


def weakest(confusion: Confusion) -> Recall | None:
    """The class that is surest to be recognised badly: with the smallest upper end. None if all are recognised."""
    failing = [one for one in recalls(confusion) if one.hits < one.count]
    return min(failing, key=lambda one: (one.high, one.share, one.label), default=None)
