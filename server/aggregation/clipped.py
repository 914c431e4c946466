"""A weighted mean in which no update reaches farther than its peers' usually do."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.tensor_names import is_parameter
from server.aggregation.accumulator import Arrays
from server.aggregation.mean import GroupAverage
from server.aggregation.screening import Screen


def parameters(names: Iterable[str]) -> list[str]:
    """The tensors that are trained."""
    return [name for name in names if is_parameter(name)]


def statistics_of_batches(names: Iterable[str]) -> list[str]:
    """The tensors that are measured: batch norm's."""
    return [name for name in names if not is_parameter(name)]


# Tensors whose change has one norm: batch norm's statistics are of another size than weights.
PARTS: dict[str, Callable[[Iterable[str]], list[str]]] = {
    "parameters": parameters,
    "statistics": statistics_of_batches,
}


class ClippedAverage:
    """x + Σ p_i min(1, b / ‖Δ_i‖) Δ_i with Δ_i = x_i − x: the mean of changes whose norm is bounded by b.

    The bound is known before the round: a multiple of the median norm of the round before. Where none is known, every
    change counts by its direction alone, and the mean direction is taken as far as the median of this round's norms:
    so a group's very first round has no moment in which a loud site is believed. It streams: no update is kept.

    Parameters
    ----------
    reference
        The model that the group's sites were sent, x.
    capacity
        Upper bound of the samples of all updates together.
    bounds
        b for each of `PARTS`; a part that is missing has no bound yet.
    """

    def __init__(self, reference: Arrays, capacity: int, bounds: Mapping[str, float]) -> None:
        self._reference = reference
        self._screen = Screen(reference)
        self._bounds = bounds
        self._norms: dict[str, list[float]] = {part: [] for part in PARTS}
        # Counters are whole numbers and go through the mean as they are. A change may be as large as what it changes.
        self._mean = GroupAverage(
            {name: array.astype(_wide(array.dtype)) for name, array in reference.items()}, capacity
        )

    @classmethod
    def bytes_needed(cls, reference: Arrays) -> int:
        """The sums of the mean, and one change in float64."""
        return 2 * GroupAverage.bytes_needed(reference)

    @property
    def count(self) -> int:
        """Updates added so far."""
        return self._mean.count

    @property
    def samples(self) -> int:
        """Samples of the updates added so far."""
        return self._mean.samples

    @property
    def norms(self) -> dict[str, float]:
        """The median norm of each part's changes; a part that nobody changed is missing."""
        medians = {part: statistics.median(norms) for part, norms in self._norms.items() if norms}
        return {part: median for part, median in medians.items() if median > 0}

    def add(self, state: Arrays, samples: int) -> None:
        """Add one update made from `samples` samples; one that fails the screening raises and changes nothing."""
        self._screen.check(state, samples)
        term: dict[str, NDArray[Any]] = dict(state)
        norms: dict[str, float] = {}
        for part, of in PARTS.items():
            names = [name for name in of(state) if np.issubdtype(state[name].dtype, np.floating)]
            for name in names:
                term[name] = state[name].astype(np.float64) - self._reference[name]
            norm = norms[part] = math.sqrt(math.fsum(float(np.vdot(term[name], term[name])) for name in names))
            bound = self._bounds.get(part, 1.0)
            if norm > bound or part not in self._bounds:
                for name in names:
                    term[name] *= bound / norm if norm else 0.0
        self._mean.add(term, samples)
        for part, norm in norms.items():
            self._norms[part].append(norm)

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the model that the mean change leads to, and close."""
        medians, changes = self.norms, self._mean.result()
        for part, of in PARTS.items():
            reach = 1.0 if part in self._bounds else medians.get(part, 0.0)
            for name in of(changes):
                dtype = self._reference[name].dtype
                if np.issubdtype(dtype, np.floating):
                    changes[name] = (self._reference[name] + reach * changes[name]).astype(dtype)
        return changes


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if np.issubdtype(dtype, np.floating) else dtype
