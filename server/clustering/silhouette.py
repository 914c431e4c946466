"""Mean silhouette of a clustering on a precomputed distance matrix (FMCL, section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.clustering.distances import Matrix, Vector, checked_distance
from server.clustering.linkage import MergeTree


def mean_silhouette(distance: ArrayLike, labels: NDArray[np.int64]) -> float:
    """S: mean over sites of (b - a) / max(a, b), from float64[N, N] distances and int64[N] labels 0..K-1.

    a is the mean distance to the other members of the own cluster, b the mean distance to the nearest other cluster.
    A singleton counts 0, a site with a = b = 0 too, and S = 0 for a single cluster.
    """
    return float(site_silhouettes(distance, labels).mean())


def site_silhouettes(distance: ArrayLike, labels: NDArray[np.int64]) -> Vector:
    """The silhouette of every site, float64[N]; see `mean_silhouette`."""
    matrix = checked_distance(distance)
    labels = np.asarray(labels)
    if labels.shape != (len(matrix),):
        raise ValueError(f"{len(matrix)} sites need {len(matrix)} labels; got shape {labels.shape}")
    return _silhouettes_of_sums(matrix @ _indicator(labels), labels)


def silhouettes_of_cuts(distance: Matrix, tree: MergeTree, k_max: int, *, singles: bool = True) -> dict[int, float]:
    """S(K) of the cuts K = 1..min(k_max, N) of a tree, with one pass over the matrix for all of them.

    A coarser cut joins whole clusters of the finest one, so its sums of distances are sums of that one's columns. With
    `singles` false a site that is alone is nobody's nearest cluster: it says nothing of how the others are parted.
    """
    finest = tree.cut(min(k_max, tree.sites))
    sums = distance @ _indicator(finest)
    representative = np.unique(finest, return_index=True)[1]
    scores = {}
    for k in range(1, min(k_max, tree.sites) + 1):
        labels = tree.cut(k)
        scores[k] = float(_silhouettes_of_sums(sums @ _indicator(labels[representative]), labels, singles).mean())
    return scores


def _indicator(labels: NDArray[np.int64]) -> Matrix:
    """float64[N, K], 1 where site i is in cluster k."""
    return np.eye(int(labels.max()) + 1)[labels]


def _silhouettes_of_sums(sums: Matrix, labels: NDArray[np.int64], singles: bool = True) -> Vector:
    """The silhouette of each site from float64[N, K], its summed distance to each cluster."""
    sites = np.arange(len(labels))
    sizes = np.bincount(labels)
    if len(sizes) == 1 or (not singles and (sizes > 1).sum() < 2):
        return np.zeros(len(labels))
    own_size = sizes[labels]
    own = sums[sites, labels] / np.maximum(own_size - 1, 1)
    to_others = sums / sizes
    if not singles:
        to_others[:, sizes == 1] = np.inf
    to_others[sites, labels] = np.inf
    nearest = to_others.min(axis=1)
    widest = np.maximum(own, nearest)
    value: Vector = np.divide(nearest - own, widest, out=np.zeros(len(labels)), where=(own_size > 1) & (widest > 0))
    return value
