"""Overlap-aware distance between sites (FMCL, section 2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from common.signature import Signature

# Sites handled at a time: enough rows for an efficient matrix product, few enough for the temporaries to stay small
# beside the N x N result.
STRIP = 256
# Rows at a time, between the products: few enough for the processor's cache.
ROWS = 16

# A matrix product need not give the two halves of a symmetric matrix the same last bits.
SYMMETRY_TOLERANCE = 1e-9

GroupingRule = Literal["guarded", "published"]

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ClassMembers:
    """All that the sites say about one class.

    Attributes
    ----------
    sites : int64[n], increasing
        The n sites that have the class.
    prototypes, norms : float64[n, d], float64[n]
        mu and its Euclidean length at those sites.
    shares : float64[N]
        w at every site, 0 where the class is absent.
    position : int64[N]
        Where a site stands in `sites`; at a site without the class any valid position, its share of 0 silences it.
    """

    sites: NDArray[np.int64]
    prototypes: Matrix
    norms: Vector
    shares: Vector
    position: NDArray[np.int64]


def overlap_distance(
    signatures: Sequence[Signature],
    *,
    alpha: float = 1.0,
    beta: float = 100.0,
    epsilon: float = 1e-3,
    overlap: bool = True,
    rule: GroupingRule = "published",
) -> Matrix:
    """Distance D between every two sites: share-weighted cosine distance over shared classes, times a multiplier.

    D_ij = d_ij * m_ij with d = sum_c w~_c d_c / (sum_c w~_c + epsilon), see `shared_shares`, `damped_cosine` and
    `overlap_multiplier`; pairs without a shared class get `disjoint_distance`. O(sum_c n_c^2 d) time for n_c sites
    with class c, two to three N x N matrices of memory.

    Parameters
    ----------
    signatures
        One per site; all of the same embedding dimension.
    alpha, beta, epsilon
        Exponent and cap of the multiplier; the floor that keeps quotients defined.
    overlap
        False is the "no overlap" ablation: m = 1.
    rule
        How far apart sites without a shared class are: see `disjoint_distance`.

    Returns
    -------
    float64[N, N], symmetric, non-negative, zero diagonal
    """
    if not signatures:
        raise ValueError("overlap_distance needs at least one signature")
    if not (alpha >= 0 and beta > 0 and epsilon > 0):
        raise ValueError(f"alpha must be >= 0, beta and epsilon > 0; got {alpha=}, {beta=}, {epsilon=}")
    count = len(signatures)
    distance = np.empty((count, count))

    def fill(start: int) -> bool:
        """Compute a strip from its own first column rightwards and mirror it; say whether it has disjoint pairs."""
        stop = min(start + STRIP, count)
        agreement, mass = _strip_sums(members, start, stop, epsilon)
        strip = np.subtract(mass, agreement, out=agreement)  # sum w~ (1 - cosine)
        np.maximum(strip, 0.0, out=strip)  # rounding alone could take identical prototypes below zero
        disjoint = mass == 0.0  # shares are positive, so only an empty sum is 0
        if overlap:
            strip *= overlap_multiplier(mass, alpha=alpha, beta=beta, epsilon=epsilon)
        mass += epsilon
        strip /= mass
        any_disjoint = bool(disjoint.any())
        if any_disjoint:
            strip[disjoint] = np.nan
        distance[start:stop, start:] = strip
        distance[stop:, start:stop] = strip[:, stop - start :].T
        return any_disjoint

    # Strips are independent. One thread each keeps the arithmetic between the products, which NumPy does on a single
    # core, from being most of the time; and the products' bits no longer depend on the number of cores.
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        members = _members_by_class(signatures, pool)
        any_disjoint = any(list(pool.map(fill, range(0, count, STRIP))))
    # The two triangles of a diagonal block come from one product and may differ in the last bit.
    for start in range(0, count, STRIP):
        block = distance[start : start + STRIP, start : start + STRIP]
        block[...] = np.where(np.tri(len(block), dtype=bool), block.T, block)
    if any_disjoint:
        np.fill_diagonal(distance, np.nan)
        np.copyto(distance, disjoint_distance(distance, rule), where=np.isnan(distance))
    np.fill_diagonal(distance, 0.0)
    return distance


def shared_shares(shares_i: Vector, shares_j: Vector) -> Matrix:
    """w~_c = min(w_ic, w_jc) for every i of the one and j of the other (section 2); 0 where either lacks the class."""
    return np.minimum.outer(shares_i, shares_j)


def damped_cosine(products: Matrix, norms_i: Vector, norms_j: Vector, epsilon: float) -> Matrix:
    """1 - d_c = mu_i . mu_j / (|mu_i| |mu_j| + epsilon) (section 2), in place of the inner products."""
    lengths = np.multiply.outer(norms_i, norms_j)
    lengths += epsilon
    products /= lengths
    return products


def overlap_multiplier(mass: Matrix, *, alpha: float, beta: float, epsilon: float) -> Matrix:
    """m = min(max(Omega, epsilon)^(-alpha), beta) (section 2): little shared mass makes a pair more distant."""
    multiplier: Matrix = np.maximum(mass, epsilon) ** -alpha
    return np.minimum(multiplier, beta, out=multiplier)


def disjoint_distance(distance: Matrix, rule: GroupingRule = "published") -> float:
    """D_big = min(2 P95, P99) over the defined entries of float64[N, N], NaN marking the others; 1 if none (section 2).

    That is no more than the largest distance between sites that share a class, and where groups have disjoint labels
    all of those lie within groups: guarded, D_big = 2 P95. The percentiles interpolate linearly. Only the largest
    twentieth is kept on the way: a copy of all entries to sort would cost more than the rest of the distance's
    arithmetic.
    """
    defined = distance.size - int(np.count_nonzero(np.isnan(distance)))
    if not defined:
        return 1.0
    ranks = [q / 100 * (defined - 1) for q in (95, 99)]
    keep = defined - int(ranks[0])
    tail = np.empty(0)
    floor = -np.inf
    for start in range(0, len(distance), STRIP):
        strip = distance[start : start + STRIP]
        tail = np.concatenate([tail, strip[strip > floor]])
        if len(tail) > 2 * keep:
            tail = np.partition(tail, len(tail) - keep)[-keep:]
            floor = tail[0]
    tail = np.partition(tail, len(tail) - keep)[-keep:]
    tail.sort()
    p95, p99 = np.interp(ranks, np.arange(defined - keep, defined), tail)
    return float(2 * p95 if rule == "guarded" else min(2 * p95, p99))


def checked_distance(distance: ArrayLike) -> Matrix:
    """The same as float64[N, N], or ValueError: square, finite, non-negative, symmetric, zero diagonal."""
    matrix = np.ascontiguousarray(distance, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"a distance matrix is square and not empty; got shape {np.shape(distance)}")
    low, high = float(matrix.min()), float(matrix.max())  # both are NaN if any entry is
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("the distance matrix holds values that are not finite")
    if low < 0:
        raise ValueError(f"the distance matrix holds negative values, down to {low}")
    if np.diagonal(matrix).any():
        raise ValueError("the diagonal of the distance matrix is not zero")
    for start in range(0, len(matrix), STRIP):
        stop = start + STRIP
        skew = matrix[start:stop, start:] - matrix[start:, start:stop].T
        if max(skew.max(), -skew.min()) > SYMMETRY_TOLERANCE * high:
            raise ValueError("the distance matrix is not symmetric")
    return matrix


def _members_by_class(signatures: Sequence[Signature], pool: Executor) -> list[ClassMembers]:
    dimensions = [signature.dimension for signature in signatures]
    if len(set(dimensions)) > 1:
        odd = next(i for i, dimension in enumerate(dimensions) if dimension != dimensions[0])
        raise ValueError(f"signature 0 has dimension {dimensions[0]}, signature {odd} has {dimensions[odd]}")
    count = len(signatures)
    rows_of: dict[int, list[tuple[int, int]]] = {}
    for site, signature in enumerate(signatures):
        for row, label in enumerate(signature.classes.tolist()):
            rows_of.setdefault(label, []).append((site, row))

    def gather(label: int) -> ClassMembers:
        rows = rows_of[label]
        sites = np.array([site for site, _ in rows])
        # float32 products would be off by 1e-7, as much as the distance between alike sites.
        prototypes = np.stack([signatures[site].prototypes[row] for site, row in rows], dtype=np.float64)
        shares = np.zeros(count)
        shares[sites] = [signatures[site].shares[row] for site, row in rows]
        return ClassMembers(
            sites=sites,
            prototypes=prototypes,
            norms=np.sqrt(np.einsum("nd,nd->n", prototypes, prototypes)),
            shares=shares,
            position=np.maximum(np.cumsum(shares > 0) - 1, 0),
        )

    return list(pool.map(gather, sorted(rows_of)))


def _strip_sums(members: Sequence[ClassMembers], start: int, stop: int, epsilon: float) -> tuple[Matrix, Matrix]:
    """sum_c w~_c (1 - d_c) and Omega = sum_c w~_c, of sites [start, stop) against sites [start, N)."""
    width = len(members[0].shares) - start
    agreement = np.zeros((stop - start, width))
    mass = np.zeros((stop - start, width))
    for member in members:
        first, end = np.searchsorted(member.sites, (start, stop))
        if first == end:
            continue
        products = member.prototypes[first:end] @ member.prototypes[first:].T
        # Spreading the columns over all sites by `take` and adding whole rows costs a fifth of indexing both axes.
        position = np.maximum(member.position[start:] - first, 0)
        for row in range(0, end - first, ROWS):
            part = slice(first + row, min(first + row + ROWS, end))
            sites = member.sites[part]
            cosine = damped_cosine(products[row : row + ROWS], member.norms[part], member.norms[first:], epsilon)
            weighted = cosine.take(position, axis=1, mode="clip")
            weight = shared_shares(member.shares[sites], member.shares[start:])
            weighted *= weight
            agreement[sites - start] += weighted
            mass[sites - start] += weight
    return agreement, mass
