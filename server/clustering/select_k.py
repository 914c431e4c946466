"""The automatic number of clusters (FMCL, section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.clustering.distances import STRIP, Matrix, checked_distance
from server.clustering.linkage import Linkage, merge_all
from server.clustering.silhouette import silhouettes_of_cuts

# (CV below this, smallest K, largest K), the first that fits.
WINDOWS = ((0.35, 1, 3), (0.70, 2, 6), (math.inf, 3, 10))

# "Every distance is equal" up to rounding: identical sites give 1 - cosine that differs in its last bits, which is an
# absolute error, and of any size relative to the distance when embeddings are long.
EQUAL_RELATIVE = 1e-6
EQUAL_ABSOLUTE = 1e-13


@dataclass(frozen=True)
class KSelection:
    """What the automatic rule chose, and from what.

    Attributes
    ----------
    k
        Number of clusters, K* in the paper.
    cv
        Coefficient of variation of the distances; 0 when all are equal.
    window
        The K that were candidates, increasing; (1,) when all distances are equal.
    scores
        S(K), the mean silhouette, for every K of the window.
    """

    k: int
    cv: float
    window: tuple[int, ...]
    scores: dict[int, float]


def select_k(distance: ArrayLike, *, k_max: int = 10, linkage: Linkage = "average") -> KSelection:
    """Choose the number of clusters of a float64[N, N] distance matrix; never more than k_max."""
    return agglomerate_auto(distance, k_max=k_max, linkage=linkage)[1]


def agglomerate_auto(
    distance: ArrayLike, *, k_max: int = 10, linkage: Linkage = "average"
) -> tuple[NDArray[np.int64], KSelection]:
    """Labels int64[N] at the automatic K and how it was chosen; the linkage is computed once for all K."""
    if k_max < 1:
        raise ValueError(f"k_max must be at least 1; got {k_max}")
    matrix = checked_distance(distance)
    cv = coefficient_of_variation(matrix)
    tree = merge_all(matrix, linkage)
    if cv == 0.0:
        return tree.cut(1), KSelection(k=1, cv=0.0, window=(1,), scores={1: 0.0})
    # One beyond the largest candidate, for the neighbour outside the window.
    silhouettes = silhouettes_of_cuts(matrix, tree, k_max + 1)
    window = candidate_window(cv, min(len(matrix), k_max))
    peaks = [k for k in window if is_local_maximum(silhouettes, k)]
    candidates = peaks or range(1, min(len(matrix), k_max) + 1)
    k = max(candidates, key=lambda candidate: (silhouettes[candidate], -candidate))
    return tree.cut(k), KSelection(k=k, cv=cv, window=window, scores={c: silhouettes[c] for c in window})


def coefficient_of_variation(distance: Matrix) -> float:
    """CV = std(D_ij) / mean(D_ij) over i != j, population std (section 4); 0 if all are equal up to rounding."""
    count = len(distance)
    pairs = count * (count - 1)
    if not pairs:
        return 0.0
    mean = float(distance.sum()) / pairs
    squares = 0.0
    for start in range(0, count, STRIP):
        deviation = distance[start : start + STRIP] - mean
        np.fill_diagonal(deviation[:, start:], 0.0)
        squares += float(np.vdot(deviation, deviation))
    std = math.sqrt(squares / pairs)
    return 0.0 if std <= EQUAL_RELATIVE * mean + EQUAL_ABSOLUTE else std / mean


def candidate_window(cv: float, largest: int) -> tuple[int, ...]:
    """The K to choose from at this CV (section 4), cut at `largest`."""
    low, high = next((low, high) for below, low, high in WINDOWS if cv < below)
    return tuple(range(low, min(high, largest) + 1))


def is_local_maximum(silhouettes: Mapping[int, float], k: int) -> bool:
    """Whether S(K) is above S(K - 1) and S(K + 1), in or out of the window; S(0) = -inf, S(N) and above = 0.

    `silhouettes` holds S(1), S(2), ... up to N or further than k. Strictly above: where S stays level, as at 0 from N
    on, there is no peak.
    """
    return silhouettes[k] > max(silhouettes.get(k - 1, -math.inf), silhouettes.get(k + 1, 0.0))
