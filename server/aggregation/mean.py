"""The weighted mean of updates, one reply at a time.

Floating-point sums depend on the order of their terms, and replies arrive in any order. So the mean is kept in fixed
point: every term is rounded once, by itself, to an integer, and sums of integers are exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.fixed_point import Limits, add_term, chunks
from server.aggregation.accumulator import RejectedUpdate
from server.aggregation.screening import Screen


class GroupAverage:
    """The mean of one group's updates weighted by their samples, sum(n_i w_i) / sum(n_i), the same bits in any order.

    It holds one int64 sum per weight, from the first update on. A term is off by at most half a unit in the
    last place, 2**-s with s = 62 - bits(capacity) - R and R the exponent of the tensor's limit (see `Limits`).

    Parameters
    ----------
    reference
        The model that the group's sites were sent; float and integer tensors (batch norm's counters) by name.
    capacity
        Upper bound of the samples of all updates together, known before the round.
    """

    def __init__(self, reference: Mapping[str, NDArray[Any]], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity} must be at least 1")
        self._screen = Screen(reference)
        self._capacity = capacity
        self._sums: dict[str, NDArray[Any]] | None = None
        self._count = 0
        self._samples = 0
        self._closed = False

    @classmethod
    def bytes_needed(cls, reference: Mapping[str, NDArray[Any]]) -> int:
        """One int64 sum for each weight; of the means, which come one after the other, no more than the arrays."""
        return sum(8 * array.size for array in reference.values())

    @property
    def count(self) -> int:
        """Updates added so far."""
        return self._count

    @property
    def samples(self) -> int:
        """Samples of the updates added so far, N."""
        return self._samples

    def add(self, state: Mapping[str, NDArray[Any]], samples: int) -> None:
        """Add one update made from `samples` samples; one that fails the screening raises and changes nothing."""
        if self._closed:
            raise RuntimeError("this average is closed")
        self._screen.check(state, samples)
        if self._samples + samples > self._capacity:
            raise RejectedUpdate(
                f"{samples} samples on top of {self._samples} are more than the {self._capacity} expected of the group"
            )
        if self._sums is None:
            self._sums = {name: _zero_sum(limits) for name, limits in self._screen.limits.items()}
        for name, limits in self._screen.limits.items():
            if limits.exponent is None:
                self._sums[name] += state[name].astype(object) * samples
            else:
                add_term(self._sums[name], state[name], math.ldexp(samples, limits.unit(self._capacity)))
        self._count += 1
        self._samples += samples

    def take(self, sums: Mapping[str, NDArray[np.int64]], count: int, samples: int) -> None:
        """Take over sums of terms that were added elsewhere, of so many updates, in the place of updates."""
        if self._sums is not None or self._closed:
            raise RuntimeError("this average has updates of its own")
        self._sums = {
            name: sums[name].astype(object) if limits.exponent is None else sums[name]
            for name, limits in self._screen.limits.items()
        }
        self._count, self._samples = count, samples

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the mean, with the reference's shapes and dtypes, and close; integers are rounded half up."""
        if self._sums is None:
            raise RuntimeError("there are no updates to average" if not self._closed else "this average is closed")
        sums, self._sums, self._closed = self._sums, None, True
        mean: dict[str, NDArray[Any]] = {}
        for name, limits in self._screen.limits.items():
            # Popped, so that sums and means never exist in full at the same time.
            total = sums.pop(name)
            if limits.exponent is None:
                half_up = (2 * total + self._samples) // (2 * self._samples)
                mean[name] = np.asarray(half_up).astype(limits.dtype)
            else:
                mean[name] = _quotient(total, math.ldexp(self._samples, limits.unit(self._capacity)), limits)
        return mean


def _zero_sum(limits: Limits) -> NDArray[Any]:
    # Integers are counters, few in number: Python's integers add them without a bound.
    return np.zeros(limits.shape, dtype=object if limits.exponent is None else np.int64)


def _quotient(total: NDArray[np.int64], divisor: float, limits: Limits) -> NDArray[Any]:
    mean = np.empty(limits.shape, dtype=limits.dtype)
    sums, flat = total.reshape(-1), mean.reshape(-1)
    for chunk in chunks(sums.size):
        np.divide(sums[chunk], divisor, out=flat[chunk], dtype=np.float64, casting="unsafe")
    return mean
