"""Reviews every round for sites that no longer belong to their group, and asks those under suspicion, and only them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.state import flat_head
from common.wire import Introduction
from server.history.events import Audience, SiteRenewed
from server.methods import Method, migration_rule
from server.methods.method import Described
from server.methods.training import Contribution, Move, Mover, Remembered
from server.migration import GuardedRule, PublishedRule, Suspect, Verdict, by_signature
from server.roster import Member, Roster

# After so many questions without an answer a suspect is judged by its updates alone.
_MOST_QUESTIONS = 3


AskAgain = Callable[[Sequence[Member], int], dict[str, Introduction]]


class Migration(Mover):
    """The run's migration rule, at work on its roster.

    Parameters
    ----------
    config, method
        Which rule; whether a suspect can be asked for a fresh fingerprint.
    roster
        The members. Their fingerprints are renewed here; their groups are changed by the strategy.
    ask_again
        Asks members for card and fingerprint anew, in a round; returns the usable answers by name.
    audience
        Hears whose card is a new one.
    """

    def __init__(self, config: Config, method: Method, roster: Roster, ask_again: AskAgain, audience: Audience) -> None:
        self._config = config
        self._method = method
        self._roster = roster
        self._ask_again = ask_again
        self._audience = audience
        published = migration_rule(config) == "fedcm"
        # Whether the server sees what single sites send.
        self._sees_updates = config.aggregate.rule != "secure"
        self._rule = (
            PublishedRule(config.migration)
            if published
            else GuardedRule(config.migration, looks_again=method.can_confirm)
        )
        # Sites look at themselves where they can describe themselves anew, and where that may have changed.
        changing = config.data.watch or bool(config.drift)
        self.watches = bool(not published and config.migration.look and method.can_confirm and changing)
        self._unanswered: Counter[str] = Counter()
        # The one that is being carried out.
        self._verdict: Verdict | None = None
        # What this round's updates change in the heads.
        self._changes: dict[str, NDArray[np.float64]] = {}
        self._losses: dict[str, float] = {}
        # Who has raised its hand: by how many standard deviations it finds its data changed.
        self._raised: dict[str, float] = {}

    def looks(self, round_number: int) -> bool:
        """Whether sites look at themselves in a round."""
        return self.watches and round_number % self._config.migration.look == 0

    def observe(self, contribution: Contribution) -> None:
        """Note how the head moves, and what the site says."""
        site = contribution.site
        if self._sees_updates:
            self._changes[site] = flat_head(contribution.after) - flat_head(contribution.before)
        self._losses[site] = contribution.loss
        if contribution.changed and self.watches:
            self._raised[site] = contribution.changed

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Judge the head updates of a round; a suspect may be found to stay."""
        changes, losses, raised = self._changes, self._losses, self._raised
        self._changes, self._losses, self._raised = {}, {}, {}
        labels = {site: group for group, sites in groups.items() for site in sites}
        if isinstance(self._rule, PublishedRule):
            verdicts: Iterable[Verdict] = self._rule.moves(changes, labels)
        elif not self._sees_updates:
            verdicts = self._verdicts(round_number, self._rule.raised_hands(round_number, labels, raised))
        else:
            suspects = self._rule.suspects(round_number, changes, labels, losses=losses, raised=raised)
            verdicts = self._verdicts(round_number, suspects)
        for verdict in verdicts:
            self._verdict = verdict
            yield Move((verdict.site,), verdict.origin, verdict.target, verdict.evidence)

    def _verdicts(self, round_number: int, suspects: Sequence[Suspect]) -> Iterator[Verdict]:
        assert isinstance(self._rule, GuardedRule)
        if self._method.can_confirm:
            # Who does not answer stays under suspicion and is asked again, but not for ever: everybody waits for it.
            asked = [suspect for suspect in suspects if self._unanswered[suspect.site] < _MOST_QUESTIONS]
            yield from self._confirmed(round_number, asked)
            suspects = [suspect for suspect in suspects if self._unanswered[suspect.site] >= _MOST_QUESTIONS]
        for suspect in suspects:
            verdict = self._rule.by_direction(suspect)
            if verdict is not None:
                del self._unanswered[suspect.site]
                yield verdict

    def state(self) -> Remembered:
        """What must be remembered from round to round."""
        return {"rule": self._rule.state(), "unanswered": dict(self._unanswered)}

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._rule.restore(state["rule"])
        self._unanswered = Counter(state["unanswered"])

    def settle(self, move: Move, group: int, round_number: int) -> None:
        """Note that a move was carried out: the site belongs to `group` now."""
        if isinstance(self._rule, GuardedRule):
            assert self._verdict is not None
            self._rule.settle(self._verdict, group, round_number)

    def _confirmed(self, round_number: int, suspects: Sequence[Suspect]) -> Iterator[Verdict]:
        """Ask suspects for fresh fingerprints and judge those that answer."""
        assert isinstance(self._rule, GuardedRule)
        assert self._method.distance is not None
        if not suspects:
            return
        answers = self._ask_again([self._roster[one.site] for one in suspects], round_number)
        self._unanswered.update(suspect.site for suspect in suspects if suspect.site not in answers)
        suspects = [suspect for suspect in suspects if suspect.site in answers]
        if not suspects:
            return
        members = self._roster.members
        fresh = [answers[suspect.site] for suspect in suspects]
        described: list[Described] = [*members, *fresh]
        distance = self._method.distance(described, self._config)
        counts = np.array([one.card.class_counts for one in described], np.float64)
        # A site may be too small to name any of its classes.
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        rows = np.arange(len(members))
        position = {member.name: index for index, member in enumerate(members)}
        for row, suspect in enumerate(suspects, start=len(members)):
            witnesses = np.array([not self._rule.is_suspected(member.name) for member in members])
            self._roster.renew(suspect.site, answers[suspect.site], round_number)
            self._audience.tell(SiteRenewed(answers[suspect.site].card))
            del self._unanswered[suspect.site]
            yield by_signature(
                suspect, row, distance, rows, self._roster.labels, position[suspect.site], witnesses, shares
            )
            rows[position[suspect.site]] = row
