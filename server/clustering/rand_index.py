"""How much two groupings of the same sites agree, beyond chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def adjusted_rand_index(one: ArrayLike, other: ArrayLike) -> float:
    """ARI of two labellings, int[N] each (Hubert and Arabie 1985): 1 for the same groups, about 0 for chance.

    Names of groups do not matter. Two groupings that leave nothing to agree on (everybody together in both, or
    everybody alone in both) are the same.
    """
    _, first = np.unique(np.asarray(one), return_inverse=True)
    _, second = np.unique(np.asarray(other), return_inverse=True)
    if len(first) != len(second) or not len(first):
        raise ValueError(f"groupings of {len(first)} and {len(second)} sites cannot be compared")
    table = np.zeros((first.max() + 1, second.max() + 1), np.int64)
    np.add.at(table, (first, second), 1)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1) // 2).sum())

    together, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    everybody = len(first) * (len(first) - 1) / 2
    expected = rows * columns / everybody if everybody else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)
