"""One representation for all sites of a cluster, found by means of the anchors they share (DC-CFL, step 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Matrix = NDArray[np.float64]

# Singular values of the stacked anchors below this are not kept (the paper's rule).
LEAST_SINGULAR_VALUE = 1e-2
# Relative to the largest: below this a direction of a site's anchors is rounding, of the float32 they are sent in.
PSEUDO_INVERSE_CUTOFF = 1e-6


@dataclass(frozen=True)
class Anchors:
    """The anchors as N sites see them, A_i = f_i(X_anc), in coordinates of the space that they all span.

    A constant column is put beside each: sites centre their rows by means of their own, and only with it a mapping can
    undo that. With Q an orthonormal basis of that space, A_i = Q B_i: what follows costs the dimension of the space
    (about as many as a row has columns), not the number of anchors.

    Attributes
    ----------
    rows
        Number r of anchors.
    blocks : float64[q, m̃ + 1] each
        B_i.
    inverses : float64[m̃ + 1, q] each
        Pseudo-inverse of B_i.
    ranks
        Of A_i, up to rounding.
    conditions
        Largest singular value of A_i by the smallest; infinite where A_i has not full rank.
    """

    rows: int
    blocks: list[Matrix]
    inverses: list[Matrix]
    ranks: list[int]
    conditions: list[float]


def gather(anchors: Sequence[NDArray[np.floating]]) -> Anchors:
    """Bring the anchors [r, m̃_i] of all sites into common coordinates."""
    # One thread, here and in `integrate`: the bits of products and decompositions depend on how many there are.
    with threadpool_limits(limits=1, user_api="blas"):
        return _gathered(anchors)


def _gathered(anchors: Sequence[NDArray[np.floating]]) -> Anchors:
    stacked = np.hstack([with_constant(block) for block in anchors])
    basis = _range(stacked)
    coordinates = basis.T @ stacked
    blocks = np.split(coordinates, np.cumsum([block.shape[1] + 1 for block in anchors])[:-1], axis=1)
    inverses, ranks, conditions = [], [], []
    for block in blocks:
        left, values, right = np.linalg.svd(block, full_matrices=False)
        kept = values > PSEUDO_INVERSE_CUTOFF * values[0]
        inverses.append((right[kept].T / values[kept]) @ left[:, kept].T)
        ranks.append(int(kept.sum()))
        full = len(values) == block.shape[1] and bool(kept.all())
        conditions.append(float(values[0] / values[-1]) if full else float("inf"))
    return Anchors(len(stacked), blocks, inverses, ranks, conditions)


def integrate(anchors: Anchors, members: Sequence[int], most_columns: int) -> list[Matrix]:
    """G_i for the members of a cluster: float64[m̃_i + 1, k], so that [f_i(X_i), 1] G_i are comparable rows.

    [A_1 … A_c] ≈ U Σ Vᵀ, keeping singular values ≥ 1e-2 and at most `most_columns` of them: with many sites stacked,
    directions made of noise pass the rule too. G_i = pinv(A_i) U C, where the paper leaves C open. Here it is
    √r Σ / (root mean square of Σ): over the anchors values are of about 1, from which a network learns, while
    directions in which the anchors hardly vary stay small instead of being blown up together with their noise.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        left, values, _ = np.linalg.svd(np.hstack([anchors.blocks[i] for i in members]), full_matrices=False)
        columns = max(1, min(most_columns, int((values >= LEAST_SINGULAR_VALUE).sum())))
        kept = values[:columns]
        target = left[:, :columns] * (np.sqrt(anchors.rows) * kept / np.sqrt((kept**2).mean()))
        return [anchors.inverses[i] @ target for i in members]


def with_constant(rows: NDArray[np.floating]) -> Matrix:
    """[f_i(x), 1]: rows with a column of ones behind them, float64[n, m̃ + 1]."""
    return np.hstack([rows, np.ones((len(rows), 1))]).astype(np.float64)


def _range(stacked: Matrix) -> Matrix:
    """An orthonormal basis of the columns' space, without directions that no cluster would keep."""
    # By the smaller Gram matrix. That squares the condition, but singular values as small as the rule's 1e-2 are
    # still far above its rounding.
    if stacked.shape[0] <= stacked.shape[1]:
        values, vectors = np.linalg.eigh(stacked @ stacked.T)
        kept = values > (LEAST_SINGULAR_VALUE / 10) ** 2
        return vectors[:, kept] if kept.any() else vectors[:, -1:]
    left, values, _ = np.linalg.svd(stacked, full_matrices=False)
    kept = values > LEAST_SINGULAR_VALUE / 10
    return left[:, kept] if kept.any() else left[:, :1]
