"""Which of a class's rows, one from each site's head, agree (FedCCFA)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from server.clustering.cosine import cosine_similarity


def row_distance(rows: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Return D_ij = mean over z ∉ {i, j} of |s_iz − s_jz| with s the cosines: float64[N, N].

    Two rows have no third one to be compared by: D = 1 − s.
    """
    similarity = cosine_similarity(rows)
    count = len(rows)
    if count <= 2:
        return 1.0 - similarity
    distance = np.zeros((count, count))
    for i in range(count):
        apart = np.abs(similarity[i] - similarity)
        # Of the row of j: what i and j have with themselves and with each other does not count.
        apart[:, i] = 0.0
        np.fill_diagonal(apart, 0.0)
        distance[i] = apart.sum(axis=1) / (count - 2)
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0.0)
    return distance


def components(distance: NDArray[np.float64], eps: float) -> NDArray[np.int64]:
    """Labels int64[N] of the connected components of distances up to `eps`: DBSCAN with min_samples = 1."""
    labels = connected_components(distance <= eps, directed=False)[1]
    found: NDArray[np.int64] = labels.astype(np.int64)
    return found
