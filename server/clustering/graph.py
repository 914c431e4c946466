"""Groups as communities of a graph: gradient-path similarity and modularity (FedCM)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.head_path import HeadPath
from server.clustering.cosine import cosine_similarity
from server.clustering.louvain import louvain

# Cosines of perpendicular paths come out this small, with either sign; an edge made of rounding would bind sites that
# have nothing in common.
_ROUNDING = 1e-12


def path_similarity(paths: Sequence[HeadPath]) -> NDArray[np.float64]:
    """Return s_ij = cosine of the concatenated changes of sites i and j: float64[N, N], symmetric, 1 on the diagonal.

    A path without length has no direction: it is similar to itself alone. All paths have one shape. O(N^2 T p).
    """
    if len({path.changes.shape for path in paths}) > 1:
        raise ValueError("paths of different shapes have no cosine")
    return cosine_similarity([path.changes.ravel() for path in paths])


def modularity_partition(similarity: NDArray[np.float64], resolution: float = 1.0) -> NDArray[np.int64]:
    """Group sites by greedy modularity moves (Louvain): labels int64[N], 0..K-1, numbered by first member.

    The graph's weights are the similarities; negative ones become 0, and there are no self loops. A site without a
    positive similarity stays alone. The order in which sites are tried is fixed, so equal input gives equal labels.
    `resolution` weighs what chance would give (1: as published): the larger, the more and the smaller the groups.
    """
    weights = np.where(similarity > _ROUNDING, similarity, 0.0)
    np.fill_diagonal(weights, 0.0)
    return louvain(weights, resolution=resolution)
