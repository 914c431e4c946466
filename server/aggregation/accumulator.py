"""What takes in the updates of a group, one by one, and gives their mean, or whatever stands in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


class RejectedUpdate(ValueError):
    """An update that must not enter an average; the message says why."""


class Accumulator(Protocol):
    """One group's updates of one round. The order in which they are added leaves no trace in the result."""

    @property
    def count(self) -> int:
        """Updates added so far."""

    @property
    def samples(self) -> int:
        """Samples of the updates added so far."""

    def add(self, state: Arrays, samples: int) -> None:
        """Add one update made from `samples` samples; `RejectedUpdate`: it fails the screening and changes nothing."""

    def result(self) -> dict[str, NDArray[Any]]:
        """Return what the updates amount to, and close."""

    @classmethod
    def bytes_needed(cls, reference: Arrays) -> int:
        """Memory that it takes for updates like `reference`, known before the first one comes."""
