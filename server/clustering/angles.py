"""Angles between the subspaces that sites' samples span (PACFL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Angle = Literal["smallest", "sum"]


def principal_angles(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the min(p, q) principal angles in degrees, ascending, between the spans of [d, p] and [d, q].

    The singular values of the product of two orthonormal bases are the angles' cosines, whichever bases are chosen:
    signs and rotations of the columns change nothing.
    """
    cosines = np.linalg.svd(_orthonormal(first).T @ _orthonormal(second), compute_uv=False)
    angles: NDArray[np.float64] = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
    return angles


def subspace_distance(bases: Sequence[NDArray[np.floating]], *, angle: Angle = "smallest") -> NDArray[np.float64]:
    """Distance in degrees between every two of N subspaces, each given by independent columns [d, q_i].

    `angle` is the smallest principal angle, or the sum of all of them. float64[N, N], symmetric, zero diagonal.
    O(N^2 q^2 (d + q)) time.
    """
    if not bases:
        raise ValueError("subspace_distance needs at least one basis")
    if len({len(basis) for basis in bases}) > 1:
        raise ValueError("subspaces of spaces of different dimensions have no angle")
    # The bits of many small products would depend on the number of threads, and more than one only wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        return _distance([_orthonormal(basis) for basis in bases], angle)


def _distance(columns: Sequence[NDArray[np.float64]], angle: Angle) -> NDArray[np.float64]:
    sizes = np.array([basis.shape[1] for basis in columns])
    # Columns of zeros make all of one shape: they add angles of 90 degrees after the true ones, which are cut off.
    padded = np.stack([np.pad(basis, ((0, 0), (0, sizes.max() - basis.shape[1]))) for basis in columns])
    distance = np.zeros((len(columns), len(columns)))
    for site, basis in enumerate(columns[:-1]):
        others = slice(site + 1, len(columns))
        cosines = np.linalg.svd(basis.T @ padded[others], compute_uv=False)
        angles = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
        if angle == "smallest":
            row = angles[:, 0]
        else:
            shared = np.minimum(sizes[site], sizes[others])
            row = np.where(np.arange(angles.shape[1]) < shared[:, None], angles, 0.0).sum(axis=1)
        distance[site, others] = distance[others, site] = row
    return distance


def _orthonormal(basis: NDArray[np.floating]) -> NDArray[np.float64]:
    """An orthonormal basis of the span in float64: one that came as float32 is off by enough to show as an angle."""
    return np.linalg.qr(basis.astype(np.float64))[0]
