"""What a site says about its data before training: how its head differs after a short warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.head_path import MOST_VALUES
from common.site_card import Fingerprint


class InvalidHeadChange(ValueError):
    """A change that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class HeadChange(Fingerprint):
    """What the warm-up changes in the head (FedClust): between two sites it differs as the heads do.

    Attributes
    ----------
    change : float32[p]
        Of the head's p parameters, weight and bias, flattened.
    """

    kind: ClassVar[str] = "head"
    agreement: ClassVar[str] = "the same model and fedclust.warm_up"

    change: NDArray[np.float32]

    def __post_init__(self) -> None:
        change = self.change
        if not isinstance(change, np.ndarray) or change.dtype != np.float32 or change.ndim != 1:
            raise InvalidHeadChange("a change must be a 1-dimensional float32 array")
        if not 0 < change.size <= MOST_VALUES:
            raise InvalidHeadChange(f"a change has 1 to {MOST_VALUES} values, not {change.size}")
        if not np.isfinite(change).all():
            raise InvalidHeadChange("a change holds values that are not finite")

    @property
    def form(self) -> str:
        """What must be alike for two changes to be compared, in words."""
        return f"{len(self.change)} head parameters"
