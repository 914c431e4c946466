"""FedCM's migration as printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from common.config import MigrationSettings
from server.migration.vectors import Vector, direction, length
from server.migration.verdict import Evidence, Verdict


class PublishedRule:
    """FedCM's migration, equations 6 to 9."""

    def __init__(self, settings: MigrationSettings) -> None:
        self._tau = settings.tau
        self._directions: dict[int, Vector] = {}

    def state(self) -> dict[str, Any]:
        """What must be remembered from round to round."""
        return {str(group): unit for group, unit in self._directions.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier `state` said."""
        self._directions = {int(group): unit for group, unit in state.items()}

    def moves(self, changes: Mapping[str, Vector], groups: Mapping[str, int]) -> list[Verdict]:
        """Judge one round; `changes` are the head updates of the sites that trained, `groups` holds every member."""
        sites = sorted(site for site in changes if np.any(changes[site]))
        sums: dict[int, Vector] = {}
        for site in sites:
            group = groups[site]
            sums[group] = sums[group] + changes[site] if group in sums else changes[site]
        self._directions |= {group: direction(total) for group, total in sums.items()}  # (7)
        # A group nobody belongs to any more is kept out of the arg-max.
        alive = sorted(self._directions.keys() & set(groups.values()))
        self._directions = {group: self._directions[group] for group in alive}
        moves = []
        for site in sites:
            theta = direction(changes[site])  # (6)
            cosines = {group: float(theta @ self._directions[group]) for group in alive}
            own = groups[site]
            if cosines[own] < self._tau:  # (8)
                target = max(alive, key=lambda group: cosines[group])  # (9)
                if target != own:
                    evidence = Evidence(cosines.pop(own), cosines, length(changes[site]))
                    moves.append(Verdict(site, own, target, evidence))
        return moves
