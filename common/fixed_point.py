"""Weighted sums of models in fixed point: what a coordinator adds up, and what a site hides before it is added up.

Floating-point sums depend on the order of their terms. Here every term is rounded once, by itself, to an integer, and
sums of integers are exact in any order, also modulo 2**64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A weight may grow to 2**HEADROOM_BITS times the largest one (or 1, if that is more) of its tensor in one round.
HEADROOM_BITS = 16
# The sums stay below 2**SUM_BITS, one bit short of what an int64 holds.
SUM_BITS = 62
# Elements handled at once: the temporaries stay in the processor's cache and small beside a model.
CHUNK = 1 << 15

Arrays = Mapping[str, NDArray[Any]]


class OutOfBounds(ValueError):
    """A state that no sum takes; the message says why."""


@dataclass(frozen=True)
class Limits:
    """What a tensor of an update must look like; floats lie strictly within 2**exponent."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    exponent: int | None

    def unit(self, capacity: int) -> int:
        """s, where 2**-s is the unit in which weighted terms are counted, for at most `capacity` samples in all."""
        assert self.exponent is not None
        return SUM_BITS - capacity.bit_length() - self.exponent


def limits_of(reference: Arrays) -> dict[str, Limits]:
    """What updates of a model must look like."""
    return {name: Limits(array.shape, array.dtype, _exponent(name, array)) for name, array in reference.items()}


def check_within(state: Arrays, limits: Mapping[str, Limits]) -> None:
    """Raise `OutOfBounds` unless a state has the names, types and shapes, is finite, and has not blown up."""
    if missing := [name for name in limits if name not in state]:
        raise OutOfBounds(f"the update lacks {', '.join(missing)}")
    if len(state) != len(limits):
        raise OutOfBounds(f"the model has no {', '.join(name for name in state if name not in limits)}")
    for name, limit in limits.items():
        array = state[name]
        if array.dtype != limit.dtype or array.shape != limit.shape:
            raise OutOfBounds(f"{name} is {array.dtype}{array.shape}, not {limit.dtype}{limit.shape}")
        if limit.exponent is None:
            continue
        largest = largest_magnitude(array)
        if not math.isfinite(largest):
            raise OutOfBounds(f"{name} holds values that are not finite")
        if largest >= math.ldexp(1, limit.exponent):
            raise OutOfBounds(f"{name} blew up: it holds {largest:.3g}, the limit is 2**{limit.exponent}")


def add_term(total: NDArray[np.int64], values: NDArray[Any], scale: float) -> None:
    """total += rint(values * scale), with the product in float64."""
    sums, terms = total.reshape(-1), values.reshape(-1)
    product = np.empty(min(CHUNK, terms.size), dtype=np.float64)
    rounded = np.empty(product.size, dtype=np.int64)
    for chunk in chunks(terms.size):
        part = terms[chunk]
        scaled, whole = product[: part.size], rounded[: part.size]
        np.copyto(scaled, part)
        scaled *= scale
        np.rint(scaled, out=scaled)
        np.copyto(whole, scaled, casting="unsafe")
        sums[chunk] += whole


def as_vector(state: Arrays, limits: Mapping[str, Limits], samples: int, capacity: int) -> NDArray[np.int64]:
    """The terms of one update, tensor after tensor by name, as one vector; `OutOfBounds` if it cannot be a term."""
    check_within(state, limits)
    vector = np.zeros(sum(state[name].size for name in limits), np.int64)
    start = 0
    for name in sorted(limits):
        values, limit = state[name], limits[name]
        part = vector[start : start + values.size]
        start += values.size
        if limit.exponent is not None:
            add_term(part, values, math.ldexp(samples, limit.unit(capacity)))
        elif largest_magnitude(values) * capacity >= 2**SUM_BITS:
            raise OutOfBounds(f"{name} holds {largest_magnitude(values):.3g}, too much for {capacity} samples")
        else:
            part[:] = values.reshape(-1).astype(np.int64) * samples
    return vector


def as_sums(vector: NDArray[np.int64], limits: Mapping[str, Limits]) -> dict[str, NDArray[np.int64]]:
    """The parts of a vector, by name, in the shapes of their tensors."""
    sums, start = {}, 0
    for name in sorted(limits):
        size = math.prod(limits[name].shape)
        sums[name] = vector[start : start + size].reshape(limits[name].shape)
        start += size
    return sums


def chunks(size: int) -> Iterator[slice]:
    """Cut so many elements into pieces."""
    return (slice(start, start + CHUNK) for start in range(0, size, CHUNK))


def largest_magnitude(array: NDArray[Any]) -> float:
    """NaN if any element is NaN; makes no temporary copy."""
    return float(np.maximum(array.max(), -array.min())) if array.size else 0.0


def _exponent(name: str, array: NDArray[Any]) -> int | None:
    if np.issubdtype(array.dtype, np.integer):
        return None
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name} is {array.dtype}: only floats and integers can be averaged")
    largest = largest_magnitude(array)
    if not math.isfinite(largest):
        raise ValueError(f"{name} of the reference holds values that are not finite")
    return HEADROOM_BITS + (math.ceil(math.log2(largest)) if largest > 1 else 0)
