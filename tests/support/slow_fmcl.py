"""A slow, literal reading of the FMCL distance, clustering and automatic K (sections 2 to 4), to test the fast one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature

Array = NDArray[np.float64]


def distance(
    signatures: Sequence[Signature],
    alpha: float = 1.0,
    beta: float = 100.0,
    epsilon: float = 1e-3,
    overlap: bool = True,
) -> Array:
    """Every pair on its own, straight from the formulas of section 2."""
    n = len(signatures)
    matrix = np.full((n, n), math.nan)
    for i in range(n):
        for j in range(i + 1, n):
            a, b = signatures[i], signatures[j]
            omega = 0.0
            weighted = 0.0
            shared = sorted(set(a.classes.tolist()) & set(b.classes.tolist()))
            for c in shared:
                p = a.classes.tolist().index(c)
                q = b.classes.tolist().index(c)
                mu_i, mu_j = a.prototypes[p].astype(np.float64), b.prototypes[q].astype(np.float64)
                w = min(float(a.shares[p]), float(b.shares[q]))
                norms = float(np.linalg.norm(mu_i)) * float(np.linalg.norm(mu_j))
                omega += w
                weighted += w * (1.0 - float(mu_i @ mu_j) / (norms + epsilon))
            if shared:
                multiplier = min(max(omega, epsilon) ** -alpha, beta) if overlap else 1.0
                matrix[i, j] = matrix[j, i] = weighted / (omega + epsilon) * multiplier
    finite = [matrix[i, j] for i in range(n) for j in range(n) if i != j and not math.isnan(matrix[i, j])]
    big = min(2 * float(np.percentile(finite, 95)), float(np.percentile(finite, 99))) if finite else 1.0
    matrix[np.isnan(matrix)] = big
    np.fill_diagonal(matrix, 0.0)
    return matrix


def cluster_distance(matrix: Array, a: list[int], b: list[int], linkage: str) -> float:
    values = [float(matrix[i, j]) for i in a for j in b]
    return {"average": math.fsum(values) / len(values), "single": min(values), "complete": max(values)}[linkage]


def partitions(matrix: Array, linkage: str = "average") -> list[tuple[float, list[list[int]]]]:
    """Every partition of the greedy merging, finest first, each with the height of the merge that made it.

    Clusters are kept in the order of their first members; of equally near pairs the first one merges.
    """
    clusters = [[i] for i in range(len(matrix))]
    steps = [(0.0, [list(c) for c in clusters])]
    while len(clusters) > 1:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a + 1, len(clusters))]
        heights = [cluster_distance(matrix, clusters[a], clusters[b], linkage) for a, b in pairs]
        height = min(heights)
        a, b = pairs[heights.index(height)]
        clusters[a] = sorted(clusters[a] + clusters.pop(b))
        steps.append((height, [list(c) for c in clusters]))
    return steps


def labels_of(clusters: list[list[int]]) -> list[int]:
    """Labels numbered by first member."""
    owner = {i: number for number, cluster in enumerate(sorted(clusters)) for i in cluster}
    return [owner[i] for i in range(len(owner))]


def silhouette(matrix: Array, clusters: list[list[int]]) -> float:
    if len(clusters) == 1 or len(clusters) == len(matrix):
        return 0.0
    values = []
    for own in clusters:
        for i in own:
            if len(own) == 1:
                values.append(0.0)
                continue
            a = sum(float(matrix[i, j]) for j in own if j != i) / (len(own) - 1)
            b = min(sum(float(matrix[i, j]) for j in other) / len(other) for other in clusters if other is not own)
            values.append((b - a) / max(a, b) if max(a, b) > 0 else 0.0)
    return sum(values) / len(values)
