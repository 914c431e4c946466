"""What a site says about its data before training: the few directions in which its samples lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.site_card import Fingerprint

# A basis is computed in float64 and sent as float32; the columns of an honest one are off by far less than this.
ORTHONORMAL_TOLERANCE = 1e-3
MOST_VALUES = 2**26


class InvalidSubspace(ValueError):
    """A basis that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class Subspace(Fingerprint):
    """The subspace that one site's training samples span (PACFL).

    Attributes
    ----------
    basis : float32[d, q]
        Orthonormal columns that span the leading left singular vectors of every class.
    """

    kind: ClassVar[str] = "subspace"
    of_images: ClassVar[bool] = True
    agreement: ClassVar[str] = "the same encoder and weights"

    basis: NDArray[np.float32]

    def __post_init__(self) -> None:
        basis = self.basis
        if not isinstance(basis, np.ndarray) or basis.dtype != np.float32 or basis.ndim != 2:
            raise InvalidSubspace("basis must be a 2-dimensional float32 array")
        rows, columns = basis.shape
        if not 1 <= columns <= rows:
            raise InvalidSubspace(f"a basis of {columns} vectors in {rows} dimensions is impossible")
        if basis.size > MOST_VALUES:
            raise InvalidSubspace(f"{columns} vectors of {rows} dimensions: more than {MOST_VALUES} values")
        if not np.isfinite(basis).all():
            raise InvalidSubspace("basis holds values that are not finite")
        # Bounded first: products of huge values would overflow.
        if np.abs(basis).max() > 1 + ORTHONORMAL_TOLERANCE or not np.allclose(
            basis.T.astype(np.float64) @ basis.astype(np.float64), np.eye(columns), rtol=0, atol=ORTHONORMAL_TOLERANCE
        ):
            raise InvalidSubspace("the columns of basis are not orthonormal")

    @property
    def form(self) -> str:
        """What must be alike for two subspaces to be compared, in words."""
        return f"subspaces of {self.basis.shape[0]} dimensions"
