"""Secure sums: what the sites of a round are asked before and after they train, all groups at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import RecordDict

from common import wire
from common.secure.advert import Advert, InvalidAdvert
from common.secure.keys import TAG_BYTES
from common.secure.shamir import SHARE_BYTES
from common.secure.terms import FEWEST, Terms, digest_of
from server.aggregation import MaskedSum, RejectedUpdate
from server.asking.grid import StreamingGrid
from server.asking.stage import Exchange, Question, ask
from server.asking.tasks import Part, Tasks
from server.history.events import SiteLeftOut, Stage
from server.roster import Member
from server.rounds.round import Round
from server.rounds.summing import Summing
from server.secure.opening import CannotOpen, common_ground, unmask

_SEALED = 2 * SHARE_BYTES + TAG_BYTES


@dataclass
class _Sum:
    """One group's sum.

    Attributes
    ----------
    group
        Whose sum it is.
    terms
        What all its members are told.
    members
        By their place in it.
    adverts, sealed
        What they sent each other so far; `sealed[a][b]` from a to b.
    shared
        Those who have shared their secrets with each other, and may send an update.
    """

    group: int
    terms: Terms
    members: Mapping[int, Member]
    context: bytes = b""
    adverts: wire.Letters = field(default_factory=dict)
    sealed: dict[int, wire.Letters] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)

    def letters_to(self, place: int) -> wire.Letters:
        return {one: self.sealed[one][place] for one in sorted(self.shared - {place})}


# Of a sum and one of its members: what that one is sent; and what is made of its letters, or `WireError`.
Send = Callable[[_Sum, int], wire.Letters]
Take = Callable[[_Sum, int, wire.Letters], None]


class SecureSumming(Summing):
    """Sites agree on masks before they train, and help to take them off the sum afterwards."""

    _sums: dict[int, _Sum]
    # Of those who take part: group and place.
    _seats: dict[str, tuple[int, int]]
    _tasks: Tasks

    def agree(
        self, this: Round, members: Mapping[int, Sequence[Member]], tasks: Tasks, grid: StreamingGrid
    ) -> set[str]:
        """Let the members of each group exchange keys, and shares of their secrets."""
        self._sums, self._seats, self._tasks, self.reasons = {}, {}, tasks, {}
        for group, present in members.items():
            self._begin(this, group, sorted(present, key=lambda member: member.name))
        self._ask(this, grid, "keys", "agree", self._everybody(), lambda one, place: {}, _take_keys)
        self._drop_those_without("keys", lambda one: one.adverts)
        who = [(group, place) for group, one in self._sums.items() for place in one.adverts]
        self._ask(this, grid, "shares", "agree", who, lambda one, place: one.adverts, _take_shares)
        for one in self._sums.values():
            one.shared, believed = common_ground(one.sealed)
            for place in sorted(one.sealed.keys() - one.shared):
                self._leave_out(this, "agree", one, place, "it and the other sites do not believe each other's keys")
            one.adverts = {place: advert for place, advert in one.adverts.items() if place in believed}
        self._drop_those_without("shares", lambda one: one.shared)
        return {one.members[place].name for one in self._sums.values() for place in one.shared}

    def part(self, member: Member) -> Part | None:
        """The terms, and the shares that the others have sealed for it."""
        group, place = self._seats[member.name]
        one = self._sums[group]
        return Part(one.terms, wire.pack_letters(one.letters_to(place)))

    def open(self, this: Round, grid: StreamingGrid) -> None:
        """Let those whose updates are in sign that, and then give away what takes the masks off."""
        summed = {group: self._contributors(this, group) for group in self._sums}
        self._drop_those_without("updates", lambda one: summed[one.group])
        signatures: dict[int, wire.Letters] = {group: {} for group in self._sums}
        given: dict[int, dict[int, wire.Letters]] = {group: {} for group in self._sums}

        def take_signature(one: _Sum, place: int, letters: wire.Letters) -> None:
            if set(letters) != {place} or not letters[place]:
                raise wire.WireError("its signature is missing")
            signatures[one.group][place] = letters[place]

        def take_given(one: _Sum, place: int, letters: wire.Letters) -> None:
            if set(letters) != one.shared or any(len(share) != SHARE_BYTES for share in letters.values()):
                raise wire.WireError("what it gave to open the sum is not one share of each member")
            given[one.group][place] = letters

        who = [(group, place) for group in self._sums for place in sorted(summed[group])]
        of_all = lambda one, place: dict.fromkeys(sorted(summed[one.group]), b"")  # noqa: E731
        self._ask(this, grid, "sign", "open", who, of_all, take_signature)
        self._drop_those_without("signatures", lambda one: signatures[one.group])
        who = [(group, place) for group in self._sums for place in sorted(signatures[group])]
        self._ask(this, grid, "open", "open", who, lambda one, place: signatures[one.group], take_given)
        for group, one in list(self._sums.items()):
            self._unmask(this, group, one, summed[group], given[group])
        # The tasks hold the models of the round.
        del self._sums, self._tasks

    def _begin(self, this: Round, group: int, present: Sequence[Member]) -> None:
        if len(present) < FEWEST:
            self._give_up(group, f"a secure sum takes {FEWEST} sites, and it has {len(present)} that train now")
            return
        model, beside = self._tasks.goes_down(group)
        terms = Terms(
            tuple(member.name for member in present),
            this.capacity(group),
            this.most(group) or 0,
            digest_of(model, beside),
        )
        self._sums[group] = _Sum(group, terms, dict(enumerate(present)))
        self._seats |= {member.name: (group, place) for place, member in enumerate(present)}

    def _unmask(self, this: Round, group: int, one: _Sum, summed: set[int], given: Mapping[int, wire.Letters]) -> None:
        average = this.average(group)
        assert isinstance(average, MaskedSum)
        try:
            wrong = unmask(average.hidden, one.terms, one.context, one.adverts, one.shared, summed, given)
            average.unmasked()
        except (CannotOpen, RejectedUpdate) as error:
            self._give_up(group, str(error))
            return
        for place, reason in sorted(wrong.items()):
            self._leave_out(this, "open", one, place, reason)

    def _contributors(self, this: Round, group: int) -> set[int]:
        return {self._seats[name][1] for name in this.contributors(group)}

    def _everybody(self) -> list[tuple[int, int]]:
        return [(group, place) for group, one in self._sums.items() for place in one.members]

    def _drop_those_without(self, what: str, there: Callable[[_Sum], Mapping[int, object] | set[int]]) -> None:
        """Give up the sums of which too few members have come so far."""
        for one in list(self._sums.values()):
            count, of, least = len(there(one)), len(one.members), one.terms.threshold
            if count < least:
                self._give_up(one.group, f"{what} of {count} of {of} sites, and a secure sum takes {least}")

    def _give_up(self, group: int, reason: str) -> None:
        self.reasons = {**self.reasons, group: reason}
        self._sums.pop(group, None)

    def _leave_out(self, this: Round, stage: Stage, one: _Sum, place: int, reason: str) -> None:
        self.audience.tell(SiteLeftOut(stage, this.round_number, one.members[place].name, reason))

    def _ask(
        self,
        this: Round,
        grid: StreamingGrid,
        kind: str,
        stage: Stage,
        who: Sequence[tuple[int, int]],
        send: Send,
        take: Take,
    ) -> None:
        """Ask members for their letters, as they come."""
        limits = self.config.round
        # Everybody waits for the answer of a few, and it costs a site no training.
        timeout = min(limits.deadline, limits.start_timeout)
        asked = [self._sums[group].members[place] for group, place in who]
        if not asked:
            return

        def question(member: Member) -> Question:
            group, place = self._seats[member.name]
            one = self._sums[group]
            content = self._tasks.bare(member, Part(one.terms, wire.pack_letters(send(one, place))))
            one.context = one.context or one.terms.context(wire.told_alike(content))
            return Question(content, f"query.{kind}")

        def read(member: Member, content: RecordDict) -> wire.Lettered:
            group, place = self._seats[member.name]
            one = self._sums[group]
            answer = wire.unpack_lettered(content, len(one.members))
            take(one, place, answer.letters)
            return answer

        exchange = Exchange(
            self.audience,
            stage,
            this.round_number,
            asked,
            question,
            read,
            timeout=timeout,
            limits="round.deadline" if timeout == limits.deadline else "round.start_timeout",
        )
        _exhaust(ask(exchange, grid, timeout))


def _exhaust(answers: Iterator[object]) -> None:
    for _ in answers:
        pass


def _take_keys(one: _Sum, place: int, letters: wire.Letters) -> None:
    if set(letters) != {place}:
        raise wire.WireError("it sent other keys than its own")
    try:
        Advert.from_bytes(letters[place])
    except InvalidAdvert as error:
        raise wire.WireError(f"its keys: {error}") from None
    one.adverts[place] = letters[place]


def _take_shares(one: _Sum, place: int, letters: wire.Letters) -> None:
    if not letters.keys() <= one.adverts.keys() - {place}:
        raise wire.WireError("it sent shares to sites that have no part in the sum")
    if any(len(sealed) != _SEALED for sealed in letters.values()):
        raise wire.WireError("its shares are none")
    one.sealed[place] = letters
