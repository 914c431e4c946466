"""What a site says about its data before training, to have it drawn: how its whole network moves in a warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.head_path import MOST_VALUES, HeadPath, InvalidHeadPath


@dataclass(frozen=True)
class WholePath(HeadPath):
    """The gradient path of one site's head, and beside it that of the body (FedCM, figure 3).

    Attributes
    ----------
    body : float32[T, q]
        Row t is what warm-up epoch t + 1 changed in the body's q parameters, flattened.
    """

    kind: ClassVar[str] = "whole_path"

    body: NDArray[np.float32]

    def __post_init__(self) -> None:
        super().__post_init__()
        body = self.body
        if not isinstance(body, np.ndarray) or body.dtype != np.float32 or body.ndim != 2:
            raise InvalidHeadPath("the body's changes must be a 2-dimensional float32 array")
        if len(body) != len(self.changes) or body.size > MOST_VALUES:
            raise InvalidHeadPath(
                f"the body's changes are of {len(self.changes)} epochs and at most {MOST_VALUES} values, not "
                f"{'×'.join(map(str, body.shape))}"
            )
        if not np.isfinite(body).all():
            raise InvalidHeadPath("the body's changes hold values that are not finite")

    @property
    def form(self) -> str:
        """What must be alike for two paths to be compared, in words."""
        return f"{super().form} and {self.body.shape[1]} others"
