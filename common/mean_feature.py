"""What a site says about its data before training: one mean feature vector over all its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.site_card import Fingerprint


class InvalidMeanFeature(ValueError):
    """A mean that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class MeanFeature(Fingerprint):
    """The mean embedding of one site's training samples (FECFL).

    Attributes
    ----------
    mean : float32[d]
        Mean of phi(x) over all training samples, whatever their class.
    """

    kind: ClassVar[str] = "mean"
    of_images: ClassVar[bool] = True
    agreement: ClassVar[str] = "the same encoder and weights"

    mean: NDArray[np.float32]

    def __post_init__(self) -> None:
        mean = self.mean
        if not isinstance(mean, np.ndarray) or mean.dtype != np.float32 or mean.ndim != 1:
            raise InvalidMeanFeature("mean must be a 1-dimensional float32 array")
        if not len(mean):
            raise InvalidMeanFeature("mean has no dimensions")
        if not np.isfinite(mean).all():
            raise InvalidMeanFeature("mean holds values that are not finite")

    @property
    def form(self) -> str:
        """What must be alike for two means to be compared, in words."""
        return f"embeddings of {len(self.mean)} dimensions"
