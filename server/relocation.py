"""Reviews every round for sites that no longer belong to their group, and asks those under suspicion, and only them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config, SettingsError
from server.enrolment import Enrolment
from server.grid import StreamingGrid
from server.methods import Method, get_method
from server.migration import GuardedRule, PublishedRule, Suspect, Verdict, by_signature
from server.roster import Roster


class Relocation:
    """The run's migration rule, at work on its roster.

    Parameters
    ----------
    config, method
        Which rule; whether a suspect can be asked for a fresh fingerprint.
    roster
        The members. Their fingerprints are renewed here; their groups are changed by the strategy.
    enrolment
        Asks the suspects.
    """

    def __init__(self, config: Config, method: Method, roster: Roster, enrolment: Enrolment) -> None:
        self._config = config
        self._method = method
        self._roster = roster
        self._enrolment = enrolment
        published = chosen_rule(config, method) == "fedcm"
        self._rule = PublishedRule(config.migration) if published else GuardedRule(config.migration)

    def review(
        self, grid: StreamingGrid, round_number: int, changes: Mapping[str, NDArray[np.float64]]
    ) -> list[Verdict]:
        """Judge the head updates of a round; a verdict may be that a suspect stays."""
        groups = {member.name: member.group for member in self._roster.members}
        if isinstance(self._rule, PublishedRule):
            return self._rule.moves(changes, groups)
        suspects = self._rule.suspects(round_number, changes, groups)
        if not suspects:
            return []
        if not self._method.can_confirm:
            verdicts = [self._rule.by_direction(suspect) for suspect in suspects]
            return [verdict for verdict in verdicts if verdict is not None]
        return self._confirmed(grid, round_number, suspects)

    def settle(self, site: str, group: int, round_number: int) -> None:
        """Note that a verdict was carried out."""
        if isinstance(self._rule, GuardedRule):
            self._rule.settle(site, group, round_number)

    def _confirmed(self, grid: StreamingGrid, round_number: int, suspects: Sequence[Suspect]) -> list[Verdict]:
        assert isinstance(self._rule, GuardedRule)
        assert self._method.distance is not None
        answers = self._enrolment.ask_again(grid, [self._roster[suspect.site] for suspect in suspects], round_number)
        # Who does not answer stays under suspicion and is asked again after the next round.
        suspects = [suspect for suspect in suspects if suspect.site in answers]
        if not suspects:
            return []
        members = self._roster.members
        known = [member.fingerprint for member in members]
        fresh = [answers[suspect.site].fingerprint for suspect in suspects]
        distance = self._method.distance([*known, *fresh], self._config.cluster)
        count = len(known)
        witnesses = np.array([not self._rule.is_suspected(member.name) for member in members])
        verdicts = [
            by_signature(suspect, row, distance[:count, :count], self._roster.labels, witnesses)
            for suspect, row in zip(suspects, distance[count:, :count], strict=True)
        ]
        for name, introduction in answers.items():
            self._roster.renew(name, introduction)
        return verdicts


def check_method(config: Config) -> None:
    """Raise `SettingsError` if the run's method is unknown or cannot do what is asked of it."""
    chosen_rule(config, get_method(config.method))


def chosen_rule(config: Config, method: Method) -> str:
    """The rule a run works by: "off", "guarded" or "fedcm"."""
    rule = config.migration.rule
    if rule == "auto":
        return method.migration
    if rule != "off" and not method.clustered:
        raise SettingsError(
            f"migration.rule = {rule!r} does not go with method = {method.name!r}, which has no groups to move "
            "between: set it to 'off' or 'auto'"
        )
    return rule
