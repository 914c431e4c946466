"""The fingerprint of PACFL: the leading directions of every class."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from common.subspace import Subspace

# Singular values below this share of the largest are rounding, and their vectors arbitrary.
_ROUNDING = 1e-6


def subspace(embeddings: NDArray[np.float32], labels: NDArray[np.int64], vectors: int) -> Subspace:
    """Describe a site's training samples by the subspace in which they lie (PACFL).

    For every class the leading left singular vectors of its (features x samples) matrix, not centred: `vectors` of them
    for the largest class and fewer in proportion for smaller ones, at least one; then an orthonormal basis of all.

    Parameters
    ----------
    embeddings : float32[n, d]
        Raw pixels or embeddings of the training samples.
    labels : int64[n]
        Index of each sample's class in the agreed class list.
    vectors
        p in the paper.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if not embeddings.any():
        raise ValueError("all samples are zero: they span no subspace")
    columns = [
        _leading(embeddings[labels == label].T.astype(np.float64), math.ceil(vectors * count / counts.max()))
        for label, count in zip(classes, counts, strict=True)
    ]
    # Directions of different classes are not perpendicular; the angles between subspaces need bases that are.
    basis = _leading(np.concatenate(columns, axis=1), embeddings.shape[1])
    return Subspace(np.ascontiguousarray(basis, np.float32))


def _leading(matrix: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return up to `most` left singular vectors of float64[d, n] as columns, without those that are only rounding."""
    # One thread: the matrices are small, threads on a busy machine wait for each other, and bits depend on how many.
    with threadpool_limits(limits=1, user_api="blas"):
        left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > _ROUNDING * values[0])) if values[0] > 0 else 0
    vectors: NDArray[np.float64] = left[:, : min(most, rank)]
    return vectors
