"""The weighted mean of updates that nobody but their sites has seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.fixed_point import SUM_BITS, as_sums, limits_of
from common.secure.terms import MASKED
from server.aggregation.accumulator import Arrays, RejectedUpdate
from server.aggregation.mean import GroupAverage
from server.aggregation.screening import check_samples


class MaskedSum:
    """The sum of masked terms modulo 2**64, and once the masks are off it, the mean: to the bit what the plain one is.

    A single update cannot be screened here, only the sum: whether every weight of it is one that such updates may have.
    Masks that do not fit leave noise, which is not.

    Parameters
    ----------
    reference, capacity
        As of the plain mean.
    """

    def __init__(self, reference: Arrays, capacity: int) -> None:
        self._reference, self._capacity = reference, capacity
        self._limits = limits_of(reference)
        self._size = sum(array.size for array in reference.values())
        self._total: NDArray[np.int64] | None = None
        self._taken = self._samples = 0
        self._open: GroupAverage | None = None

    @classmethod
    def bytes_needed(cls, reference: Arrays) -> int:
        """As the plain mean."""
        return GroupAverage.bytes_needed(reference)

    @property
    def count(self) -> int:
        """Updates in the sum; none as long as it is hidden."""
        return 0 if self._open is None else self._open.count

    @property
    def samples(self) -> int:
        """Samples of the updates added so far."""
        return self._samples

    @property
    def hidden(self) -> NDArray[np.uint64]:
        """The sum with its masks, to be taken off in place."""
        if self._total is None:
            raise RuntimeError("there are no updates to sum")
        return self._total.view(np.uint64)

    def add(self, state: Arrays, samples: int) -> None:
        """Add one masked update; one of another form raises and changes nothing."""
        check_samples(samples)
        if self._samples + samples > self._capacity:
            raise RejectedUpdate(
                f"{samples} samples on top of {self._samples} are more than the {self._capacity} agreed"
            )
        vector = state.get(MASKED)
        if len(state) != 1 or vector is None or vector.dtype != np.int64 or vector.shape != (self._size,):
            raise RejectedUpdate(f"the update is not {self._size} masked numbers, as was agreed")
        if self._total is None:
            self._total = np.zeros(self._size, np.int64)
        self._total += vector
        self._taken += 1
        self._samples += samples

    def unmasked(self) -> None:
        """Take note that the masks are off; raises `RejectedUpdate` if what is left is no sum of updates."""
        if self._total is None:
            raise RuntimeError("there are no updates to sum")
        sums, self._total = as_sums(self._total, self._limits), None
        for name, limits in self._limits.items():
            # By how much every term may differ from the exact product, times how many there are.
            most = 2.0**SUM_BITS
            if limits.exponent is not None:
                most = math.ldexp(self._samples, limits.exponent + limits.unit(self._capacity)) + self._taken
            total = sums[name]
            if total.size and max(int(total.max()), -int(total.min())) > most:
                raise RejectedUpdate(f"the sum of {name} is none of such updates: masks, or an update, do not fit")
        self._open = GroupAverage(self._reference, self._capacity)
        self._open.take(sums, self._taken, self._samples)

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the mean, and close."""
        if self._open is None:
            raise RuntimeError("the sum is hidden")
        return self._open.result()
