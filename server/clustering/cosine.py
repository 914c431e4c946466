"""Cosines between many long vectors, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from server.clustering.linkage import agglomerate

# Columns handled at once: the float64 copies stay small beside vectors as long as a network.
_CHUNK = 1 << 16


def gram(vectors: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Return the inner product of every two of N vectors [p]: float64[N, N]."""
    products = np.zeros((len(vectors), len(vectors)))
    # The bits of a product depend on the number of threads.
    with threadpool_limits(limits=1, user_api="blas"):
        for start in range(0, vectors[0].size, _CHUNK):
            # In float64 from the start: squares of float32 can overflow.
            part = np.stack([vector[start : start + _CHUNK] for vector in vectors], dtype=np.float64)
            products += part @ part.T
    return products


def cosine_similarity(vectors: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Return the cosine between every two of N vectors [p]: float64[N, N], symmetric, 1 on the diagonal.

    A vector without length has no direction: it is similar to itself alone. O(N^2 p) time, O(N^2) memory.
    """
    if not vectors:
        raise ValueError("cosine_similarity needs at least one vector")
    if len({vector.shape for vector in vectors}) > 1:
        raise ValueError("vectors of different shapes have no cosine")
    products = gram(vectors)
    norms = np.sqrt(np.diagonal(products))
    lengths = np.where(norms > 0, norms, 1.0)
    # By one length after the other: the product of two small ones may vanish.
    similarity: NDArray[np.float64] = products / lengths[:, None] / lengths[None, :]
    similarity = np.clip((similarity + similarity.T) / 2, -1.0, 1.0)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def cosine_distance(vectors: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Return 1 - cosine of every two vectors: float64[N, N] between 0 and 2, zero diagonal (FECFL)."""
    return 1.0 - cosine_similarity(vectors)


def bipartition(changes: Sequence[NDArray[np.floating]]) -> NDArray[np.int64]:
    """Part N >= 2 updates in two by complete linkage on -cosine: labels int64[N], the first update's part is 0 (CFL).

    Complete linkage makes the largest cosine across the parts as small as greedy merging can.
    """
    return agglomerate(cosine_distance(changes), k=2, linkage="complete")
