"""How differently sites' samples of the same class look, beyond chance: a distance that class shares do not enter.

Where every site has its own class shares in its softmax, groups are for sites whose images or meanings differ. The
overlap-aware distance would hide those behind the shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform
from threadpoolctl import threadpool_limits

from common.signature import Signature
from server.clustering.distances import Matrix, Vector, disjoint_distance, shared_shares


def appearance_distance(signatures: Sequence[Signature], sizes: Sequence[int]) -> Matrix:
    """Distance float64[N, N] of sites by the class means of `sizes` samples each: symmetric, zero diagonal.

    D_ij = max(0, sum_c w~_c (d_c - e_c) / sum_c w~_c) with w~ and d as in `overlap_distance`, and e_c what d_c would be
    by chance: see `expected_by_chance`. Sites without a common class are as far apart as the longest step on the best
    way from one to the other (`along_paths`); without a way, as sites without a shared class are under the guarded rule
    (`disjoint_distance`), by distances from which nothing was taken.
    """
    counts = [np.rint(signature.shares * size) for signature, size in zip(signatures, sizes, strict=True)]
    traces = class_traces(signatures, counts)
    # A class of which nobody has two samples scatters as the others do; if there are none, nothing is chance.
    traces[np.isnan(traces)] = np.nanmean(traces) if np.isfinite(traces).any() else 0.0
    rows: dict[int, list[tuple[int, int]]] = {}
    for site, signature in enumerate(signatures):
        for row, label in enumerate(signature.classes.tolist()):
            rows.setdefault(label, []).append((site, row))
    apart, chance, mass = (np.zeros((len(signatures), len(signatures))) for _ in range(3))
    # The bits of a product depend on the number of threads.
    with threadpool_limits(limits=1, user_api="blas"):
        for label in sorted(rows):
            means = np.stack([signatures[site].prototypes[row] for site, row in rows[label]], dtype=np.float64)
            shares = np.array([signatures[site].shares[row] for site, row in rows[label]])
            samples = np.array([counts[site][row] for site, row in rows[label]])
            lengths = np.multiply.outer(norms := np.linalg.norm(means, axis=1), norms)
            weight = shared_shares(shares, shares) * (lengths > 0)
            lengths[lengths == 0] = 1.0
            both = np.ix_(own := [site for site, _ in rows[label]], own)
            apart[both] += weight * np.maximum(1 - means @ means.T / lengths, 0.0)
            chance[both] += weight * expected_by_chance(traces[label], samples, lengths)
            mass[both] += weight
    np.fill_diagonal(mass, 0.0)
    known = mass > 0
    seen, beyond = np.full_like(mass, np.nan), np.full_like(mass, np.nan)
    seen[known] = apart[known] / mass[known]
    beyond[known] = np.maximum(apart[known] - chance[known], 0.0) / mass[known]
    return along_paths((beyond + beyond.T) / 2, otherwise=disjoint_distance(seen, "guarded"))


def expected_by_chance(trace: float, samples: Vector, lengths: Matrix) -> Matrix:
    """e = t (1/n_i + 1/n_j) / (2 |mu_i| |mu_j|): the cosine distance of means that are the same but for sampling."""
    expected: Matrix = trace * np.add.outer(1 / samples, 1 / samples) / (2 * lengths)
    return expected


def class_traces(signatures: Sequence[Signature], counts: Sequence[Vector]) -> Vector:
    """t_c = sum_i n_ic s_ic / sum_i (n_ic - 1), float64[C]: the trace of the covariance within a class.

    NaN where nobody has two samples of it. `counts` are the samples of each signature's classes.
    """
    classes = max(int(signature.classes[-1]) for signature in signatures) + 1
    squares, free = np.zeros(classes), np.zeros(classes)
    for signature, own in zip(signatures, counts, strict=True):
        squares[signature.classes] += own * signature.scatter
        free[signature.classes] += np.maximum(own - 1, 0)
    traces: Vector = np.divide(squares, free, out=np.full(classes, np.nan), where=free > 0)
    return traces


def along_paths(distance: Matrix, otherwise: float) -> Matrix:
    """Fill in float64[N, N], NaN marking what is not known, by the smallest longest step over all paths.

    So two sites without a common class are near each other if a third has classes of both and looks like both.
    `otherwise`: how far apart sites without any path are. The diagonal becomes zero. O(N^2).
    """
    unknown = np.isnan(distance)
    np.fill_diagonal(unknown, False)
    filled = np.where(unknown, 0.0, distance)
    np.fill_diagonal(filled, 0.0)
    if not unknown.any():
        return filled
    never = 2 * float(filled.max()) + 1
    steps: Matrix = squareform(cophenet(linkage(squareform(np.where(unknown, never, filled), checks=False), "single")))
    filled[unknown] = np.where(steps < never, steps, otherwise)[unknown]
    return filled
