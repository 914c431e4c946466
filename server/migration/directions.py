"""What is remembered of each site, and where each group is heading."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from server.migration.vectors import Vector, cosine_of, direction

# Rounds of calm that make up what is usual for a site.
_HISTORY = 5
# A site that has been silent for so many times its usual gap is no longer waited for.
_LOST = 5


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


class Directions:
    """Where each group is heading: the mean of its witnesses' unit vectors in the last round it was heard."""

    def __init__(self, witnesses: Mapping[str, Record]) -> None:
        self._members: dict[int, dict[str, Record]] = {}
        for site, record in witnesses.items():
            if np.any(record.unit):
                self._members.setdefault(record.group, {})[site] = record
        self._heard = {group: _latest(members) for group, members in self._members.items()}
        self._sums = {group: _sum(heard) for group, heard in self._heard.items()}

    def with_peers(self, site: str, record: Record) -> float | None:
        """Cosine with the direction of the site's own group, the site itself left out; None: nobody else."""
        heard = self._heard.get(record.group, {})
        if site not in heard:
            return cosine_of(record.unit, self._sums[record.group]) if heard else None
        if len(heard) > 1:
            return cosine_of(record.unit, self._sums[record.group] - record.unit)
        others = {other: of for other, of in self._members[record.group].items() if other != site}
        return cosine_of(record.unit, _sum(_latest(others))) if others else None

    def with_others(self, record: Record) -> dict[int, float]:
        """Cosines with the directions of the other groups."""
        return {
            group: cosine_of(record.unit, self._sums[group]) for group in sorted(self._sums.keys() - {record.group})
        }


def _latest(records: Mapping[str, Record]) -> dict[str, Record]:
    last = max(record.last_round for record in records.values())
    return {site: record for site, record in records.items() if record.last_round == last}


def _sum(records: Mapping[str, Record]) -> Vector:
    total: Vector = np.sum([record.unit for record in records.values()], axis=0)
    return total
