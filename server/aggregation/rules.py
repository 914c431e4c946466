"""What becomes of a group's updates under each `aggregate.rule`, and how much one site may weigh."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping

from common.config import AggregateSettings
from server.aggregation.accumulator import Accumulator, Arrays
from server.aggregation.clipped import ClippedAverage
from server.aggregation.masked import MaskedSum
from server.aggregation.mean import GroupAverage
from server.aggregation.trimmed import TrimmedMean

_MEDIAN = 0.5


class Aggregation:
    """Makes the accumulators of a run, and remembers how far its groups' updates reached in the round before."""

    def __init__(self, settings: AggregateSettings) -> None:
        self._settings = settings
        # The median norms of each group's last round.
        self._norms: dict[int, dict[str, float]] = {}

    def accumulator(self, group: int, reference: Arrays, capacity: int) -> Accumulator:
        """What takes in the terms of a group: arrays like `reference`, of at most `capacity` samples."""
        settings = self._settings
        match settings.rule:
            case "mean":
                return GroupAverage(reference, capacity)
            case "secure":
                return MaskedSum(reference, capacity)
            case "clipped":
                norms = self._norms.get(group, {})
                return ClippedAverage(reference, capacity, {part: settings.clip * norm for part, norm in norms.items()})
            case "trimmed":
                return TrimmedMean(reference, settings.trim)
            case "median":
                return TrimmedMean(reference, _MEDIAN)

    def note(self, group: int, accumulator: Accumulator) -> None:
        """Take note of a round that became a group's model."""
        if isinstance(accumulator, ClippedAverage):
            self._norms[group] = accumulator.norms

    def forget(self, group: int) -> None:
        """Let go of the norms of a group that is no more."""
        self._norms.pop(group, None)

    @property
    def is_capped(self) -> bool:
        """Whether there is a limit to what one update counts for."""
        return bool(self._settings.cap)

    @property
    def closes_early(self) -> bool:
        """Whether an accumulator gives its result as soon as its last update is in, before other groups'."""
        return self._settings.rule != "secure"

    def most(self, declared: Collection[int]) -> int | None:
        """The most samples that an update counts for, under a cap, in a group whose sites have declared so many.

        Of two middle counts the lower one is the median, so that in a group of two neither outweighs the other. None:
        there is no cap, or nobody to compare with, as a model that everybody is offered may have no members.
        """
        if not self._settings.cap or not declared:
            return None
        return max(1, int(self._settings.cap * statistics.median_low(declared)))

    def state(self) -> dict[str, dict[str, float]]:
        """What must be remembered from round to round."""
        return {str(group): norms for group, norms in self._norms.items()}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Remember what an earlier `state` said."""
        self._norms = {int(group): dict(norms) for group, norms in state.items()}
