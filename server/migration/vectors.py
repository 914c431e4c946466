"""Lengths and directions of head updates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def length(vector: Vector) -> float:
    """The length of a vector."""
    return float(np.linalg.norm(vector))


def direction(vector: Vector) -> Vector:
    """The vector at length one; a vector of zeros stays as it is."""
    norm = length(vector)
    return vector / norm if norm > 0 else vector


def cosine_of(unit: Vector, other: Vector) -> float:
    """The cosine of a unit vector with another vector of any length."""
    return float(np.clip(unit @ direction(other), -1.0, 1.0))


def medians_of_others(values: Vector) -> Vector:
    """For each of n values the median of the n − 1 others; n ≥ 2."""
    order = np.argsort(values, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(values))
    ordered = values[order]
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # Without its own value, the k-th smallest is the k-th of all, or the next one if its own was among the first k.
    return np.asarray((ordered[low + (rank <= low)] + ordered[high + (rank <= high)]) / 2)
