"""What an update must look like before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.aggregation.accumulator import RejectedUpdate

# A weight may grow to 2**HEADROOM_BITS times the largest one (or 1, if that is more) of its tensor in one round.
HEADROOM_BITS = 16


@dataclass(frozen=True)
class Limits:
    """What a tensor of an update must look like; floats lie strictly within 2**exponent."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    exponent: int | None


class Screen:
    """Holds updates against the model that the sites were sent: names, types, shapes, finite, not blown up.

    Parameters
    ----------
    reference
        That model; float and integer tensors (batch norm's counters) by name.
    """

    def __init__(self, reference: Mapping[str, NDArray[Any]]) -> None:
        self.limits = {
            name: Limits(array.shape, array.dtype, _exponent(name, array)) for name, array in reference.items()
        }

    def check(self, state: Mapping[str, NDArray[Any]], samples: int) -> None:
        """Raise `RejectedUpdate` unless an update made from `samples` samples fits."""
        # A bool is an int to Python, but as a count it is a mistake.
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise RejectedUpdate(f"the number of samples is {samples!r}, not a whole number of 1 or more")
        if missing := [name for name in self.limits if name not in state]:
            raise RejectedUpdate(f"the update lacks {', '.join(missing)}")
        if len(state) != len(self.limits):
            raise RejectedUpdate(f"the model has no {', '.join(name for name in state if name not in self.limits)}")
        for name, limits in self.limits.items():
            array = state[name]
            if array.dtype != limits.dtype or array.shape != limits.shape:
                raise RejectedUpdate(f"{name} is {array.dtype}{array.shape}, not {limits.dtype}{limits.shape}")
            if limits.exponent is None:
                continue
            largest = _largest_magnitude(array)
            if not math.isfinite(largest):
                raise RejectedUpdate(f"{name} holds values that are not finite")
            if largest >= math.ldexp(1, limits.exponent):
                raise RejectedUpdate(f"{name} blew up: it holds {largest:.3g}, the limit is 2**{limits.exponent}")


def _exponent(name: str, array: NDArray[Any]) -> int | None:
    if np.issubdtype(array.dtype, np.integer):
        return None
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name} is {array.dtype}: only floats and integers can be averaged")
    largest = _largest_magnitude(array)
    if not math.isfinite(largest):
        raise ValueError(f"{name} of the reference holds values that are not finite")
    return HEADROOM_BITS + (math.ceil(math.log2(largest)) if largest > 1 else 0)


def _largest_magnitude(array: NDArray[Any]) -> float:
    """NaN if any element is NaN; makes no temporary copy."""
    return float(np.maximum(array.max(), -array.min())) if array.size else 0.0
