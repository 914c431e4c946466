"""Distances between long vectors by their differences: L1 and L2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

Norm = Literal["l1", "l2"]

# Columns handled at once: the float64 copies stay small beside vectors as long as a network.
_CHUNK = 1 << 16
_SUMS = {"l1": "cityblock", "l2": "sqeuclidean"}


def norm_distance(vectors: Sequence[NDArray[np.floating]], norm: Norm) -> NDArray[np.float64]:
    """Return |v_i − v_j| of every two of N vectors [p]: float64[N, N]. O(N² p) time, O(N²) memory."""
    if len({vector.shape for vector in vectors}) != 1:
        raise ValueError("distances are between vectors of one length, at least one")
    count = len(vectors)
    total = np.zeros(count * (count - 1) // 2)
    for start in range(0, vectors[0].size, _CHUNK):
        # In float64 from the start: squares of float32 can overflow.
        part = np.stack([vector[start : start + _CHUNK] for vector in vectors], dtype=np.float64)
        total += pdist(part, _SUMS[norm])
    distance: NDArray[np.float64] = squareform(np.sqrt(total) if norm == "l2" else total, checks=False)
    return distance.reshape(count, count)
