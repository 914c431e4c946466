"""What is remembered of a site from round to round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.migration.vectors import Vector, direction

# Rounds of calm that make up what is usual for a site.
_HISTORY = 5
# A site that has been silent for so many times its usual gap is no longer waited for.
_LOST = 5
# A move that nobody's data speak for must bring the loss down to this part of what it was: half-hearted ones harm.
_HELPS = 0.5
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
    # Looked at again after its rest: it founded a group, or its data had changed and it stayed all the same.
    founder: bool = False
    in_doubt: bool = False
    # The loss while it last trained. On trial in a new group: the one it left, and the loss it had there.
    loss: float | None = None
    left: int | None = None
    loss_there: float | None = None

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

    def to_return_to(self, loss: float | None, sizes: Mapping[int, int]) -> int | None:
        """The group that a site on trial goes back to, because it was better off there; None: it stays.

        The group it left had begun to follow it, and the one it came to has not: who does far better all the same
        belongs there.
        """
        if self.left is None or self.loss_there is None or loss is None or not sizes[self.left]:
            return None
        return self.left if loss > _HELPS * self.loss_there else None
