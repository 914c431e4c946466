"""Reviews every round for sites that no longer belong to their group, and asks those under suspicion, and only them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from server.checkpoint import State
from server.enrolment import Enrolment
from server.events import Audience, SiteRenewed
from server.grid import StreamingGrid
from server.methods import Method, migration_rule
from server.migration import GuardedRule, PublishedRule, Suspect, Verdict, by_signature
from server.roster import Roster

# After so many questions without an answer a suspect is judged by its updates alone.
_MOST_QUESTIONS = 3


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
    audience
        Hears whose card is a new one.
    """

    def __init__(
        self, config: Config, method: Method, roster: Roster, enrolment: Enrolment, audience: Audience
    ) -> None:
        self._config = config
        self._method = method
        self._roster = roster
        self._enrolment = enrolment
        self._audience = audience
        published = migration_rule(config) == "fedcm"
        self._rule = (
            PublishedRule(config.migration)
            if published
            else GuardedRule(config.migration, probation=method.can_confirm)
        )
        self._unanswered: Counter[str] = Counter()

    def review(
        self, grid: StreamingGrid, round_number: int, changes: Mapping[str, NDArray[np.float64]]
    ) -> Iterator[Verdict]:
        """Judge the head updates of a round; a verdict may be that a suspect stays.

        Each verdict is to be carried out and settled before the next one is asked for.
        """
        groups = {member.name: member.group for member in self._roster.members}
        if isinstance(self._rule, PublishedRule):
            yield from self._rule.moves(changes, groups)
            return
        suspects = self._rule.suspects(round_number, changes, groups)
        if self._method.can_confirm:
            # Who does not answer stays under suspicion and is asked again, but not for ever: everybody waits for it.
            asked = [suspect for suspect in suspects if self._unanswered[suspect.site] < _MOST_QUESTIONS]
            yield from self._confirmed(grid, round_number, asked)
            suspects = [suspect for suspect in suspects if self._unanswered[suspect.site] >= _MOST_QUESTIONS]
        for suspect in suspects:
            verdict = self._rule.by_direction(suspect)
            if verdict is not None:
                del self._unanswered[suspect.site]
                yield verdict

    def state(self) -> State:
        """What must be remembered from round to round."""
        return {"rule": self._rule.state(), "unanswered": dict(self._unanswered)}

    def restore(self, state: State) -> None:
        """Remember what an earlier `state` said."""
        self._rule.restore(state["rule"])
        self._unanswered = Counter(state["unanswered"])

    def settle(self, verdict: Verdict, group: int, round_number: int) -> None:
        """Note that a verdict was carried out: the site belongs to `group` now."""
        if isinstance(self._rule, GuardedRule):
            self._rule.settle(verdict, group, round_number)

    def _confirmed(self, grid: StreamingGrid, round_number: int, suspects: Sequence[Suspect]) -> Iterator[Verdict]:
        """Ask suspects for fresh fingerprints and judge those that answer."""
        assert isinstance(self._rule, GuardedRule)
        assert self._method.distance is not None
        if not suspects:
            return
        answers = self._enrolment.ask_again(grid, [self._roster[one.site] for one in suspects], round_number)
        self._unanswered.update(suspect.site for suspect in suspects if suspect.site not in answers)
        suspects = [suspect for suspect in suspects if suspect.site in answers]
        if not suspects:
            return
        members = self._roster.members
        fresh = [answers[suspect.site].fingerprint for suspect in suspects]
        distance = self._method.distance([*(member.fingerprint for member in members), *fresh], self._config.cluster)
        rows = np.arange(len(members))
        position = {member.name: index for index, member in enumerate(members)}
        for row, suspect in enumerate(suspects, start=len(members)):
            witnesses = np.array([not self._rule.is_suspected(member.name) for member in members])
            self._roster.renew(suspect.site, answers[suspect.site])
            self._audience.tell(SiteRenewed(answers[suspect.site].card))
            del self._unanswered[suspect.site]
            yield by_signature(suspect, row, distance, rows, self._roster.labels, witnesses)
            rows[position[suspect.site]] = row
