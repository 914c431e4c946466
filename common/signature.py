"""What a site says about its data before training: one mean embedding per class, and how its samples scatter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.site_card import Fingerprint, SiteCard

_MAX_DIMENSION = 65_536
# Shares are float64 quotients of integers, so their sum is off by rounding at most.
SHARE_SUM_TOLERANCE = 1e-6
# Squares of float32 embeddings stay below it, and its own square is still a number.
_MAX_SCATTER = 1e100
_FORM = (
    ("classes", np.int64, 1),
    ("prototypes", np.float32, 2),
    ("shares", np.float64, 1),
    ("scatter", np.float64, 1),
)


class InvalidSignature(ValueError):
    """A signature that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class Signature(Fingerprint):
    """The class prototypes of one site.

    Attributes
    ----------
    classes : int64[C]
        Indices into the agreed class list, strictly increasing.
    prototypes : float32[C, d]
        Row c is the mean embedding of the site's training samples of `classes[c]` (mu in the paper).
    shares : float64[C]
        Share of each class among the site's training samples (w in the paper); sums to 1.
    scatter : float64[C]
        Mean squared distance of the class's embeddings from their mean: how far a prototype is off by chance follows
        from it. Left out, it is 0, as if all samples of a class were one: then no difference is chance.
    """

    kind: ClassVar[str] = "signature"
    of_images: ClassVar[bool] = True
    agreement: ClassVar[str] = "the same encoder and weights"

    classes: NDArray[np.int64]
    prototypes: NDArray[np.float32]
    shares: NDArray[np.float64]
    scatter: NDArray[np.float64] = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.scatter is None:
            object.__setattr__(self, "scatter", np.zeros(np.shape(self.classes)))
        for name, dtype, ndim in _FORM:
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
                raise InvalidSignature(f"{name} must be a {ndim}-dimensional {np.dtype(dtype).name} array")
        count = len(self.classes)
        if count == 0:
            raise InvalidSignature("a signature needs at least one class")
        if self.prototypes.shape[0] != count or len(self.shares) != count or len(self.scatter) != count:
            raise InvalidSignature(
                f"{count} classes, {self.prototypes.shape[0]} prototypes, {len(self.shares)} shares and "
                f"{len(self.scatter)} scatters do not match"
            )
        if self.prototypes.shape[1] == 0:
            raise InvalidSignature("prototypes have no dimensions")
        if self.classes[0] < 0 or np.any(self.classes[1:] <= self.classes[:-1]):
            raise InvalidSignature("classes must be non-negative, unique and in increasing order")
        if not np.isfinite(self.prototypes).all():
            raise InvalidSignature("prototypes hold values that are not finite")
        if not np.isfinite(self.shares).all() or np.any(self.shares <= 0) or np.any(self.shares > 1):
            raise InvalidSignature("shares must lie in (0, 1]")
        if abs(float(self.shares.sum()) - 1.0) > SHARE_SUM_TOLERANCE:
            raise InvalidSignature(f"shares sum to {float(self.shares.sum()):.6f}, not to 1")
        if not np.isfinite(self.scatter).all() or np.any(self.scatter < 0) or np.any(self.scatter > _MAX_SCATTER):
            raise InvalidSignature(f"scatter must lie between 0 and {_MAX_SCATTER:g}")

    def check(self, card: SiteCard) -> None:
        """Raise unless this can be the signature of the site that the card describes."""
        if self.dimension > _MAX_DIMENSION:
            raise InvalidSignature(f"{self.dimension} dimensions, at most {_MAX_DIMENSION} are allowed")
        classes = len(card.class_counts)
        if self.classes[-1] >= classes:
            raise InvalidSignature(f"class {int(self.classes[-1])} is not among the {classes} agreed classes")
        if not any(card.class_counts):
            raise InvalidSignature("the card names no class that it could be of")
        shares = np.array(card.class_counts) / sum(card.class_counts)
        present = np.flatnonzero(shares)
        if not np.array_equal(self.classes, present) or not np.allclose(self.shares, shares[present]):
            raise InvalidSignature("its classes and shares are not those of the class counts")
        if np.any(self.scatter[np.array(card.class_counts)[present] == 1] > 0):
            raise InvalidSignature("a class with a single sample has no scatter")

    @property
    def dimension(self) -> int:
        """Length d of an embedding."""
        return int(self.prototypes.shape[1])

    @property
    def form(self) -> str:
        """What must be alike for two signatures to be compared, in words."""
        return f"embeddings of {self.dimension} dimensions"
