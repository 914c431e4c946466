"""Where the noise of a privacy budget comes from, and how it meets what it hides."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.randomness import generator

Floats = NDArray[np.float64]

# Values and noise are rounded to one grid of so many steps to a standard deviation. What is sent is then a sum of whole
# numbers, and the low bits of floating point tell nothing of the value beneath (Mironov 2012).
_STEPS = 2.0**24


class Source(Protocol):
    """Draws that nobody else can foretell."""

    def uniform(self, count: int) -> Floats:
        """Numbers in (0, 1]."""

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal numbers."""


class SystemSource:
    """Of a real site: every number comes from the operating system's random bits, none from a seed."""

    def uniform(self, count: int) -> Floats:
        """53 bits each."""
        words = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
        return (words.astype(np.float64) + 1) * 2.0**-53

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """By Box and Muller's transform."""
        count = int(np.prod(shape))
        half = -(-count // 2)
        radius, angle = np.sqrt(-2 * np.log(self.uniform(half))), 2 * np.pi * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


class SeededSource:
    """Of a simulated site: a function of seed, site, round and purpose, so that the same seed gives the same bits."""

    def __init__(self, seed: int, purpose: str, site: str, round_number: int) -> None:
        self._generator = generator(seed, f"privacy {purpose}", site, round_number)

    def uniform(self, count: int) -> Floats:
        """From NumPy's generator."""
        return 1 - self._generator.random(count)

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """From NumPy's generator."""
        return self._generator.standard_normal(shape)


def blurred(values: NDArray[np.generic] | float, deviation: float, source: Source) -> Floats:
    """Values with Gaussian noise of a standard deviation, both on one grid."""
    exact = np.asarray(values, np.float64)
    grid = deviation / _STEPS
    noise = source.normal(exact.shape) * _STEPS
    found: Floats = (np.rint(exact / grid) + np.rint(noise)) * grid
    return found


def clipped(rows: NDArray[np.floating], length: float) -> Floats:
    """Rows float[n, d], none longer than this."""
    exact = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", exact, exact))
    # A touch shorter, which rounding a sum to the grid of its noise cannot make up for.
    factor = np.minimum(1.0, length * (1 - 1e-3) / np.maximum(lengths, 1e-300))
    exact *= factor[:, None]
    return exact
