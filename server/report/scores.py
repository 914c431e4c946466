"""How sure the groups' models were in the last round that was tested: histograms of their scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.metrics import BINS
from server.history import run_directory
from server.report.counts_file import UnusableCounts, read_counts, whole_numbers


def read_scores(directory: Path, round_number: int, classes: int) -> dict[int, NDArray[np.int64]]:
    """Each group's histograms int64[2, C, BINS], of the class and of the others; nothing of another round."""
    groups = read_counts(directory / run_directory.SCORES, "groups", round_number)
    if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in groups):
        raise UnusableCounts("a group has no number")
    return {int(name): _histograms(cells, classes) for name, cells in groups.items()}


def _histograms(cells: object, classes: int) -> NDArray[np.int64]:
    counts = np.zeros((2, classes, BINS), np.int64)
    for label, place, hits, others in whole_numbers(cells, 4):
        if label >= classes or place >= BINS:
            raise UnusableCounts(f"a bin is not of {classes} classes")
        counts[:, label, place] += (hits, others)
    return counts
