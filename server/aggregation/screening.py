"""What an update must look like before anything is computed with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from common.fixed_point import OutOfBounds, check_within, limits_of
from server.aggregation.accumulator import RejectedUpdate


class Screen:
    """Holds updates against the model that the sites were sent: names, types, shapes, finite, not blown up.

    Parameters
    ----------
    reference
        That model; float and integer tensors (batch norm's counters) by name.
    """

    def __init__(self, reference: Mapping[str, NDArray[Any]]) -> None:
        self.limits = limits_of(reference)

    def check(self, state: Mapping[str, NDArray[Any]], samples: int) -> None:
        """Raise `RejectedUpdate` unless an update made from `samples` samples fits."""
        check_samples(samples)
        try:
            check_within(state, self.limits)
        except OutOfBounds as error:
            raise RejectedUpdate(str(error)) from None


def check_samples(samples: int) -> None:
    """Raise `RejectedUpdate` unless this is a number of samples."""
    # A bool is an int to Python, but as a count it is a mistake.
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise RejectedUpdate(f"the number of samples is {samples!r}, not a whole number of 1 or more")
