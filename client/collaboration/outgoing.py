"""What of a site's rows is sent: seen through f_i, and on request averaged and blurred (DC-CFL, step 1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


def aggregated(rows: Rows, labels: Labels, size: int) -> tuple[Rows, Labels]:
    """Average rows of one class, `size` or a few more at a time; what is sent then belongs to no single person.

    Alike rows are averaged: they are taken in the order of their class's first principal direction. A class with fewer
    than `size` rows is left out.
    """
    if size == 1:
        return rows, labels
    means, kinds = [], []
    for label in np.unique(labels):
        members = rows[labels == label]
        if len(members) < size:
            continue
        centred = members - members.mean(axis=0)
        _, vectors = np.linalg.eigh(centred.T @ centred)
        ordered = members[np.argsort(centred @ vectors[:, -1], kind="stable")]
        means += [part.mean(axis=0) for part in np.array_split(ordered, len(members) // size)]
        kinds += [label] * (len(members) // size)
    if not means:
        return rows[:0], labels[:0]
    return np.stack(means), np.array(kinds, np.int64)


def blurred(rows: Rows, noise: float, rng: np.random.Generator) -> Rows:
    """Add Gaussian noise of `noise` times the rows' own spread (root mean variance), the same in all directions."""
    if noise == 0 or len(rows) == 0:
        return rows
    spread = float(np.sqrt(rows.var(axis=0).mean()))
    return rows + noise * spread * rng.standard_normal(rows.shape)
