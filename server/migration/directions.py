"""Where each group is heading."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from server.migration.record import Record
from server.migration.vectors import Vector, cosine_of


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
