"""The private map f_i of a site (DC-CFL, step 1)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits


@dataclass(frozen=True, eq=False)
class PrivateMap:
    """f_i(x) = (x − mean) · components. It never leaves the site.

    Attributes
    ----------
    mean : float64[m]
        Of the site's own training rows.
    components : float64[m, m̃]
        Orthonormal columns: principal directions, turned by a rotation that only the site knows.
    """

    mean: NDArray[np.float64]
    components: NDArray[np.float64]

    def __call__(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return float64[n, m̃]."""
        return (rows - self.mean) @ self.components

    @property
    def ticket(self) -> NDArray[np.uint8]:
        """A digest by which the map is known: uint8[32]."""
        digest = hashlib.sha256(str(self.components.shape).encode())
        digest.update(np.ascontiguousarray(self.mean).data)
        digest.update(np.ascontiguousarray(self.components).data)
        return np.frombuffer(digest.digest(), np.uint8)


def fit_private_map(rows: NDArray[np.floating], dimensions: int, rng: np.random.Generator) -> PrivateMap:
    """Principal directions of the rows [n, m], the `dimensions` of most variance, in a frame turned at random.

    Of fewer rows than columns, or of constant columns, PCA knows fewer directions than are asked for. The rest is
    made up by directions in which the site's rows do not vary: its later rows may, and the anchors do.
    """
    if not 1 <= dimensions <= rows.shape[1]:
        raise ValueError(f"{dimensions} dimensions of {rows.shape[1]} columns cannot be kept")
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    # One thread: bits depend on how many there are, and a simulated site knows its map again by its bits.
    with threadpool_limits(limits=1, user_api="blas"):
        _, vectors = np.linalg.eigh(centred.T @ centred)
        leading = vectors[:, ::-1][:, :dimensions]
        return PrivateMap(mean, leading @ random_rotation(dimensions, rng))


def random_rotation(dimensions: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """An orthogonal matrix, drawn uniformly (Haar)."""
    q, r = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))
    # The signs of R's diagonal depend on the routine; fixed, the draw is uniform.
    turned: NDArray[np.float64] = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return turned
