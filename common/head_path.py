"""What a site says about its data before training: the way its head moves in a short warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.site_card import Fingerprint

# 256 MB of float32: five epochs of the head of a network with 512 features and 26,000 classes.
MOST_VALUES = 2**26


class InvalidHeadPath(ValueError):
    """A path that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class HeadPath(Fingerprint):
    """The gradient path of one site's head (FedCM).

    Attributes
    ----------
    changes : float32[T, p]
        Row t is what warm-up epoch t + 1 changed in the head's p parameters, weight and bias, flattened.
    """

    kind: ClassVar[str] = "path"
    agreement: ClassVar[str] = "the same model and fedcm.warm_up"

    changes: NDArray[np.float32]

    def __post_init__(self) -> None:
        changes = self.changes
        if not isinstance(changes, np.ndarray) or changes.dtype != np.float32 or changes.ndim != 2:
            raise InvalidHeadPath("changes must be a 2-dimensional float32 array")
        if changes.size == 0:
            raise InvalidHeadPath(f"a path needs at least one epoch and one parameter, not {self.form}")
        if changes.size > MOST_VALUES:
            raise InvalidHeadPath(f"{self.form}: more than {MOST_VALUES} values")
        if not np.isfinite(changes).all():
            raise InvalidHeadPath("changes hold values that are not finite")

    @property
    def form(self) -> str:
        """What must be alike for two paths to be compared, in words."""
        return f"{self.changes.shape[0]} epochs of {self.changes.shape[1]} head parameters"
