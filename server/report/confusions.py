"""Who was taken for what: the sites' confusion matrices in the last round that was tested."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.intervals import wilson
from server.history import run_directory

Confusion = NDArray[np.int64]

_MOST_SAMPLES = 2**40
_LARGEST_FILE = 200_000_000  # bytes


class UnusableConfusions(ValueError):
    """A file that cannot be what a run wrote; the message says why."""


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
    path = directory / run_directory.CONFUSIONS
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UnusableConfusions("it is too large")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableConfusions(str(error)) from None
    if not isinstance(found, dict) or not isinstance(sites := found.get("sites"), dict):
        raise UnusableConfusions("it holds no sites")
    if found.get("round") != round_number:
        return {}
    return {str(name): _matrix(cells, classes) for name, cells in sites.items()}


def _matrix(cells: object, classes: int) -> Confusion:
    matrix = np.zeros((classes, classes), np.int64)
    if not isinstance(cells, list):
        raise UnusableConfusions("a site has no list of cells")
    for cell in cells:
        if not isinstance(cell, list) or len(cell) != 3 or any(type(number) is not int for number in cell):
            raise UnusableConfusions("a cell is not three whole numbers")
        truth, predicted, count = cell
        if not (0 <= truth < classes and 0 <= predicted < classes and 0 < count <= _MOST_SAMPLES):
            raise UnusableConfusions(f"a cell is not of {classes} classes")
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
