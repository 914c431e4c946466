"""What is remembered of a site from round to round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.migration.trial import Trials
from server.migration.vectors import Vector, direction

# Rounds of calm that make up what is usual for a site.
_HISTORY = 5
# A site that has been silent for so many times its usual gap is no longer waited for.
_LOST = 5
# Whoever has been quiet for so many times its last rest begins with a short one again.
_FORGIVEN = 4


@dataclass
class Record:
    """What is remembered of a site."""

    group: int
    unit: Vector
    first_round: int
    last_round: int
    times_heard: int = 0
    # Of the last calm rounds: the norm of the update, and how many times the median of the peers it was.
    norms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    strikes: int = 0
    # The round of the last verdict; far in the past: there was none.
    settled: int = -(10**6)
    rests_until: int = 0
    # How long its last rest was; the next one is twice as long.
    rest: int = 0
    # Looked at again after its rest: it founded a group, or may have been examined in the middle of a change.
    founder: bool = False
    in_doubt: bool = False
    trials: Trials = field(default_factory=Trials)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Record:
        """Return what `state` described."""
        return cls(**{**state, "trials": Trials.restored(state["trials"])})

    def state(self) -> dict[str, Any]:
        """Return all of it, by the names of its fields."""
        return vars(self) | {"trials": self.trials.state()}

    @property
    def usual_norm(self) -> float | None:
        """The median norm of the site's last calm rounds."""
        return statistics.median(self.norms) if self.norms else None

    def hear(self, group: int, change: Vector, round_number: int) -> None:
        """Take in a head update."""
        self.group, self.unit, self.last_round = group, direction(change), round_number
        self.times_heard += 1

    def note(self, norm: float, peer_norm: float | None) -> None:
        """Take a round into what is usual for the site."""
        self.norms = [*self.norms, norm][-_HISTORY:]
        if peer_norm:
            self.ratios = [*self.ratios, norm / peer_norm][-_HISTORY:]

    def is_lost(self, round_number: int) -> bool:
        """Whether the site has been silent for far longer than it usually is."""
        usual_gap = (self.last_round - self.first_round + 1) / self.times_heard
        return round_number - self.last_round > _LOST * usual_gap

    def rest_from(self, round_number: int, dwell: int) -> None:
        """Note a verdict: the site is left in peace, twice as long as last time unless that is long ago."""
        forgiven = round_number - self.rests_until > _FORGIVEN * self.rest
        self.rest = dwell if forgiven or not self.rest else 2 * self.rest
        self.settled, self.rests_until = round_number, round_number + 1 + self.rest
