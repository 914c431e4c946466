"""Agglomerative clustering of a distance matrix (FMCL, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.clustering.distances import Matrix, Vector, checked_distance

Linkage = Literal["average", "single", "complete"]

# Stands for "never": finite, so that the arithmetic on whole rows gives no NaN.
FAR = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class MergeTree:
    """The order in which N sites merge into one cluster; every cut comes from it without clustering again.

    Attributes
    ----------
    pairs : int64[N - 1, 2]
        First members of the two clusters of each merge, the smaller one first; it names the merged cluster.
    heights : float64[N - 1]
        Distance between the two clusters of each merge.
    """

    pairs: NDArray[np.int64]
    heights: Vector

    @property
    def sites(self) -> int:
        """Number N of sites."""
        return len(self.heights) + 1

    def cut(self, k: int) -> NDArray[np.int64]:
        """Labels int64[N] of exactly k clusters, numbered by first member: the state after N - k merges."""
        if not 1 <= k <= self.sites:
            raise ValueError(f"k must lie between 1 and the number of sites, {self.sites}; got {k}")
        owner = np.arange(self.sites)
        joined = self.pairs[: self.sites - k]
        owner[joined[:, 1]] = joined[:, 0]
        while not np.array_equal(owner, owner[owner]):
            owner = owner[owner]
        return np.unique(owner, return_inverse=True)[1].astype(np.int64)

    def cut_at(self, threshold: float) -> NDArray[np.int64]:
        """Labels int64[N] once the next merge would exceed the threshold; merges at the threshold happen."""
        if np.isnan(threshold):
            raise ValueError("threshold is not a number")
        exceeding = np.flatnonzero(self.heights > threshold)
        merges = int(exceeding[0]) if len(exceeding) else len(self.heights)
        return self.cut(self.sites - merges)


def agglomerate(
    distance: ArrayLike,
    *,
    k: int | None = None,
    threshold: float | None = None,
    linkage: Linkage = "average",
) -> NDArray[np.int64]:
    """Labels int64[N], 0..K-1 numbered by first member, of a float64[N, N] distance matrix.

    Give either `k`, the exact number of clusters, or `threshold`, the largest distance at which clusters still merge.
    """
    if (k is None) == (threshold is None):
        raise ValueError(f"give either k or threshold; got {k=}, {threshold=}")
    tree = merge_tree(distance, linkage=linkage)
    if k is not None:
        return tree.cut(k)
    assert threshold is not None
    return tree.cut_at(threshold)


def merge_tree(distance: ArrayLike, *, linkage: Linkage = "average") -> MergeTree:
    """All N - 1 merges of a distance matrix, nearest clusters first.

    Among equally near pairs the one whose first members come first merges: pairs of sites without a shared class all
    have the same distance, so ties are the rule and not the exception. Typically O(N^2) time; one copy of the matrix.
    """
    return merge_all(checked_distance(distance), linkage)


def merge_all(distance: Matrix, linkage: Linkage) -> MergeTree:
    """`merge_tree` of a matrix already checked: greedy merging with a lower bound on each row's minimum.

    With these linkages a union is no nearer to a third cluster than the nearer of its parts was, so a merge can only
    leave bounds too low. They are repaired not at once but when one comes up as the smallest, which few ever do. Nor is
    what other rows hold of a cluster that is gone: a column is far slower to write than a row.
    """
    if linkage not in get_args(Linkage):
        raise ValueError(f"linkage must be one of {', '.join(get_args(Linkage))}; got {linkage!r}")
    count = len(distance)
    near = distance.copy()
    np.fill_diagonal(near, FAR)
    first_member = np.arange(count)
    size = np.ones(count)
    bound = near.min(axis=1)
    gone = np.zeros(count, dtype=bool)
    pairs = np.empty((count - 1, 2), dtype=np.int64)
    heights = np.empty(count - 1)
    merges = 0
    while merges < count - 1:
        i = int(bound.argmin())
        j = int(near[i].argmin())
        if gone[j]:
            near[i, j] = FAR
            continue
        height = near[i, j]
        if height > bound[i]:
            bound[i] = height
            continue
        i, j = min(i, j), max(i, j)
        row = _merged_row(near[i], near[j], size[i], size[j], linkage)
        gone[j] = True
        row[gone] = row[i] = FAR
        near[i] = near[:, i] = row
        bound[i], bound[j] = row.min(), FAR
        size[i] += size[j]
        pairs[merges] = first_member[i], first_member[j]
        heights[merges] = height
        merges += 1
        # Dropping the dead rows whenever they are half keeps the total work at O(N^2) and the columns near each other.
        if 2 * (count - merges) <= len(bound):
            alive = np.flatnonzero(~gone)
            near = near[np.ix_(alive, alive)]
            first_member, size, bound, gone = first_member[alive], size[alive], bound[alive], gone[alive]
    return MergeTree(pairs=pairs, heights=heights)


def _merged_row(near_i: Vector, near_j: Vector, size_i: float, size_j: float, linkage: Linkage) -> Vector:
    """Distances of the union of clusters i and j to all others (Lance-Williams)."""
    if linkage == "single":
        return np.minimum(near_i, near_j)
    if linkage == "complete":
        return np.maximum(near_i, near_j)
    # As a step from i towards j rather than a weighted sum: equal distances then stay equal to the last bit, and ties
    # remain ties.
    row: Vector = near_j - near_i
    row *= size_j / (size_i + size_j)
    row += near_i
    return row
