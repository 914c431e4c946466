"""How far apart the labels of sites are (DC-CFL, step 2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def total_variation(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """D_ij = ½ Σ_k |p_i(k) − p_j(k)|, where p_i = counts[i] / Σ counts[i]: float64[N, N] in [0, 1].

    `counts` is int64[N, C]: the rows of each class at each site, at least one per site. O(N² C).
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    distance = np.zeros((len(shares), len(shares)))
    # Class by class: all differences at once would be an array of N² C.
    for share in shares.T:
        distance += np.abs(share[:, np.newaxis] - share)
    # Rounding may carry the sum of disjoint histograms a hair above 1.
    return np.minimum(distance / 2, 1.0)
