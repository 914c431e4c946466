"""A map of the sites: points in the plane that are near where distances are small (multidimensional scaling)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.stats import rankdata

from server.clustering.distances import Matrix, checked_distance

_STEPS, _STEPS_IF_MANY, _MANY = 100, 20, 1000
# A step that lowers the stress by less than this share of it is the last.
_ENOUGH = 1e-3


@dataclass(frozen=True)
class SiteMap:
    """Where sites lie.

    Attributes
    ----------
    points : float64[N, 2]
        Centred, the longest axis first; the largest coordinate is at 1 or -1.
    stress
        Kruskal's stress-1 on the ranks, 0 (true) to 1: the share of the distances that a plane cannot show.
    """

    points: NDArray[np.float64]
    stress: float


def site_map(distance: ArrayLike) -> SiteMap:
    """Draw a map of a float64[N, N] distance matrix.

    Distances between sites span several orders of magnitude, and a map true to their sizes would show every group as a
    single dot. So the map is made for their ranks (equal distances share one), from 0 to 1: classical scaling first,
    then SMACOF's majorisation of the stress. O(N^2) a step, at most 100 steps (20 above 1,000 sites); nothing in it is
    random.
    """
    matrix = checked_distance(distance)
    count = len(matrix)
    if count == 1:
        return SiteMap(np.zeros((1, 2)), 0.0)
    target = rank_distance(matrix)
    points = classical_scaling(target)
    points, stress = majorise(points, target)
    return SiteMap(_upright(points), stress)


def rank_distance(distance: Matrix) -> Matrix:
    """Replace each distance by its rank among all pairs, divided by their number: (0, 1], 0 on the diagonal."""
    count = len(distance)
    upper = np.triu_indices(count, 1)
    ranks = rankdata(distance[upper]) / len(upper[0])
    target = np.zeros((count, count))
    target[upper] = ranks
    return target + target.T


def classical_scaling(target: Matrix) -> Matrix:
    """Torgerson's solution float64[N, 2]: the two leading eigenvectors of the doubly centred squares."""
    squares = target**2
    squares -= squares.mean(axis=0)
    squares -= squares.mean(axis=1, keepdims=True)
    last = len(target) - 1
    values, vectors = eigh(-0.5 * squares, subset_by_index=(last - 1, last))
    points: Matrix = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    return points


def majorise(points: Matrix, target: Matrix) -> tuple[Matrix, float]:
    """Lower the stress of points float64[N, 2] by Guttman's transform until it hardly changes; also return stress-1."""
    total = float((target**2).sum())
    lengths = _lengths(points)
    stress, before = _raw_stress(lengths, target), np.inf
    for _ in range(_STEPS if len(points) <= _MANY else _STEPS_IF_MANY):
        if before - stress <= _ENOUGH * stress:
            break
        ratio = np.divide(target, lengths, out=np.zeros_like(target), where=lengths > 0)
        points = (ratio.sum(axis=1, keepdims=True) * points - ratio @ points) / len(points)
        lengths = _lengths(points)
        stress, before = _raw_stress(lengths, target), stress
    return points, float(np.sqrt(stress / total)) if total else 0.0


def _lengths(points: Matrix) -> Matrix:
    squares = (points**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(apart, 0.0)
    np.maximum(apart, 0.0, out=apart)
    lengths: Matrix = np.sqrt(apart, out=apart)
    return lengths


def _raw_stress(lengths: Matrix, target: Matrix) -> float:
    difference = (lengths - target).ravel()
    return float(difference @ difference)


def _upright(points: Matrix) -> Matrix:
    """Turn the map so that equal input looks equal: longest axis first, the first site that is off an axis above it."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    turned = centred @ axes.T
    for axis in range(2):
        off = np.flatnonzero(np.abs(turned[:, axis]) > 1e-9)
        if len(off) and turned[off[0], axis] < 0:
            turned[:, axis] *= -1
    largest = np.abs(turned).max()
    upright: Matrix = turned / largest if largest > 0 else turned
    return upright
