"""Groups by the few directions in which many long vectors differ: leading singular directions, k-means, matched labels.

N long vectors are never decomposed as a matrix: its N × N Gram matrix has the same directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from server.clustering.cosine import gram

_STARTS = 10


def leading_coordinates(vectors: Sequence[NDArray[np.floating]], count: int) -> NDArray[np.float64]:
    """Return where N vectors lie along their `count` leading singular directions: float64[N, count].

    With ΔΔᵀ = QΛQᵀ they are √λ_k Q_ik. Directions that do not exist are zeros; each has the sign that makes its
    largest coordinate positive. Equal vectors have equal coordinates, to the last bit.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        values, vectors_of = np.linalg.eigh(gram(vectors))
    order = np.argsort(values, kind="stable")[::-1][:count]
    leading = values[order]
    # What rounding leaves of a value that is 0 has a root that is not small.
    leading[leading <= len(vectors) * np.finfo(np.float64).eps * max(values.max(), 0.0)] = 0.0
    coordinates = np.zeros((len(vectors), count))
    coordinates[:, : len(order)] = vectors_of[:, order] * np.sqrt(leading)
    coordinates = coordinates[_first_alike(vectors)]
    largest = np.abs(coordinates).argmax(axis=0)
    signs = np.sign(coordinates[largest, np.arange(count)])
    return coordinates * np.where(signs == 0, 1, signs)


def _first_alike(vectors: Sequence[NDArray[np.floating]]) -> NDArray[np.int64]:
    """The place of the first vector that is equal to each."""
    known: dict[bytes, int] = {}
    digests = [hashlib.sha256(np.ascontiguousarray(vector).data).digest() for vector in vectors]
    return np.array([known.setdefault(digest, place) for place, digest in enumerate(digests)], np.int64)


def decomposed_cosines(vectors: Sequence[NDArray[np.floating]], count: int) -> NDArray[np.float64]:
    """Return E_ik = cos(Δ_i, v_k), the cosines with the `count` leading right singular vectors (FlexCFL).

    A vector without length has none.
    """
    norms = np.sqrt(np.diagonal(gram(vectors)))
    return leading_coordinates(vectors, count) / np.where(norms > 0, norms, 1.0)[:, None]


def directions_of(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return unit vectors with these cosines: float64[N, N], rows; any others are these turned.

    S = QΛQᵀ gives Q√Λ. What rounding leaves below 0 counts as 0.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        values, vectors = np.linalg.eigh(cosines)
    points: NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0.0, None))
    return points


def k_means(points: NDArray[np.float64], k: int, seed: int) -> NDArray[np.int64]:
    """Labels int64[N] of k-means++ from ten seeded starts, least inertia, numbered by first member.

    There are never more groups than different points.
    """
    from sklearn.cluster import KMeans

    k = min(k, len(np.unique(points, axis=0)))
    with threadpool_limits(limits=1):
        labels = KMeans(k, n_init=_STARTS, random_state=seed % 2**32).fit(points).labels_
    return by_first_member(labels)


def mean_vector(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The plain mean, summed in float64."""
    return np.asarray(np.mean(np.stack(vectors), axis=0, dtype=np.float64), np.float32)


def by_first_member(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number groups 0, 1, … in the order of their first members."""
    known: dict[int, int] = {}
    return np.array([known.setdefault(int(label), len(known)) for label in labels], np.int64)


def matched(labels: NDArray[np.int64], old: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the groups `labels` under those of the k old labels that move the fewest sites.

    An assignment solver, where a public version tries all k! permutations. Of equally good ones the one whose numbers
    are nearest to the order of first members.
    """
    labels = by_first_member(labels)
    overlap = np.zeros((k, k), np.int64)
    np.add.at(overlap, (labels, old), 1)
    places = np.arange(k)
    # The squares of a whole assignment sum to less than k³, so they decide nothing but ties.
    cost = (places[:, None] - places) ** 2 - overlap * (k**3 + 1)
    _, target = linear_sum_assignment(cost)
    renamed: NDArray[np.int64] = target[labels].astype(np.int64)
    return renamed
