"""Asking sites who they are, and deciding who may take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict

from common import wire
from common.classes import agreed_classes
from common.config import Config
from common.models import State
from server.events import Audience, ReplyAccepted, SiteLeftOut, Stage, StageStarted
from server.grid import StreamingGrid
from server.methods import Method
from server.roster import Member, Roster, common_form

_MOST_FAILURES = 3


@dataclass(frozen=True)
class _Answer:
    """What came of asking a node: an introduction, or the reason why there is none.

    `is_wrong`: it answered, but not with what it should; asking again would not help.
    """

    node: int
    introduction: wire.Introduction | None
    reason: str
    is_wrong: bool
    sent: int = 0
    received: int = 0


class Enrolment:
    """Sends the query before training to nodes, once each, and screens the answers.

    Parameters
    ----------
    config, method
        What is asked: the method's fingerprint, under the run's settings.
    initial
        The model every site starts from, sent along where the fingerprint needs it.
    roster
        The members so far; a newcomer may not take the name of one that is connected.
    audience
        Hears who was turned away, and why.
    """

    def __init__(self, config: Config, method: Method, initial: State, roster: Roster, audience: Audience) -> None:
        self._config = config
        self._method = method
        self._initial = initial
        self._roster = roster
        self._audience = audience
        self._class_count = len(agreed_classes(config.data))
        # Nodes that are not asked again: what they said was wrong, or they failed too often.
        self._turned_away: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()

    def strangers(self, grid: StreamingGrid) -> list[int]:
        """Connected nodes that have not been asked yet."""
        return [
            node
            for node in sorted(grid.get_node_ids())
            if self._roster.at_node(node) is None and node not in self._turned_away
        ]

    def why_nobody(self) -> str:
        """The reasons for which nodes were left out, the most frequent first."""
        return "; ".join(f"{count} × {reason}" for reason, count in self._reasons.most_common(3))

    def introduce(
        self, grid: StreamingGrid, nodes: list[int], round_number: int
    ) -> list[tuple[wire.Introduction, int]]:
        """Ask nodes who they are; return those that can take part with their node ids, by name."""
        found: dict[str, tuple[wire.Introduction, int]] = {}
        # Once training has begun, all other sites wait meanwhile: a silent newcomer is tried again next round.
        timeout = self._config.round.deadline if round_number == 0 else self._patience
        for answer in self._ask("enrol", grid, nodes, round_number, timeout, self._method.fingerprint):
            if answer.introduction is None:
                if answer.is_wrong:
                    self._turn_away(answer.node, round_number, answer.reason)
                else:
                    self._failures[answer.node] += 1
                    self._put_off(answer.node, round_number, answer.reason)
                continue
            name = answer.introduction.card.name
            if name in found or self._is_connected(name, grid):
                # Perhaps the same site, restarted, whose old node is not yet known to be gone.
                self._put_off(answer.node, round_number, _clash(name))
                continue
            found[name] = (answer.introduction, answer.node)
            self._accepted("enrol", round_number, name, answer)
        return self._comparable(found, round_number)

    def ask_again(
        self, grid: StreamingGrid, members: Sequence[Member], round_number: int
    ) -> dict[str, wire.Introduction]:
        """Ask members anew for card and fingerprint, because their data changed; return the usable answers by name."""
        asked = {member.node_id: member for member in members}
        answers: dict[str, wire.Introduction] = {}
        kind = self._method.fingerprint
        for answer in self._ask("confirm", grid, list(asked), round_number, self._patience, kind):
            member = asked[answer.node]
            reason = answer.reason or self._contradiction(member, answer.introduction)
            if answer.introduction is None or reason:
                self._audience.tell(SiteLeftOut("confirm", round_number, member.name, reason))
                continue
            answers[member.name] = answer.introduction
            self._accepted("confirm", round_number, member.name, answer)
        return {name: answers[name] for name in sorted(answers)}

    def recognise(self, grid: StreamingGrid, nodes: list[int], round_number: int) -> dict[str, int]:
        """Ask nodes only for their names; return the nodes of known members. Nobody is turned away for anything."""
        seats: dict[str, int] = {}
        for answer in self._ask("enrol", grid, nodes, round_number, self._config.round.deadline, None):
            if answer.introduction is None:
                self._put_off(answer.node, round_number, answer.reason)
                continue
            name = answer.introduction.card.name
            if name in seats:
                self._put_off(answer.node, round_number, _clash(name))
            elif name in self._roster:
                seats[name] = answer.node
        return seats

    @property
    def _patience(self) -> float:
        """Seconds for which everybody waits for the answer of a few."""
        return min(self._config.round.deadline, self._config.round.start_timeout)

    def _ask(
        self,
        stage: Stage,
        grid: StreamingGrid,
        nodes: list[int],
        round_number: int,
        timeout: float,
        fingerprint: str | None,
    ) -> Iterator[_Answer]:
        """Yield one answer per node, as they come; the silent ones last."""
        self._audience.tell(StageStarted(stage, round_number, len(nodes)))
        questions, sent = self._questions(nodes, round_number, fingerprint)
        silent = set(nodes)
        for reply in grid.send_and_receive(questions, timeout=timeout):
            node = grid.node_of(reply)
            if node not in silent:
                continue
            silent.discard(node)
            if reply.has_error():
                yield _Answer(node, None, failure_of(reply), False)
                continue
            try:
                introduction = self._read(reply.content, fingerprint)
            except wire.WireError as error:
                yield _Answer(node, None, str(error), True)
                continue
            yield _Answer(node, introduction, "", False, sent, wire.size(reply.content))
        for node in sorted(silent):
            yield _Answer(node, None, f"no answer within {timeout:.0f} s", False)

    def _accepted(self, stage: Stage, round_number: int, name: str, answer: _Answer) -> None:
        assert answer.introduction is not None
        seconds = answer.introduction.seconds
        self._audience.tell(ReplyAccepted(stage, round_number, name, answer.sent, answer.received, seconds))

    @staticmethod
    def _contradiction(member: Member, introduction: wire.Introduction | None) -> str:
        """What in a new introduction cannot come from the member it is ascribed to."""
        if introduction is None or introduction.card.name != member.name:
            return f"calls itself {introduction.card.name!r} now" if introduction else "no answer"
        known, fresh = member.fingerprint, introduction.fingerprint
        if known is not None and fresh is not None and known.form != fresh.form:
            return f"{fresh.form} where it had {known.form} before"
        return ""

    def _questions(self, nodes: list[int], round_number: int, fingerprint: str | None) -> tuple[Iterator[Message], int]:
        """Return one message per node, and the bytes of each."""
        task = wire.Task(self._config.for_site(), round_number, self._config.rounds)
        # Serialised once: all questions share the record.
        needs_model = fingerprint is not None and self._method.fingerprint_needs_model
        models = [wire.pack_arrays(self._initial)] if needs_model else []
        kind = f"query.{fingerprint or 'hello'}"
        ttl = self._config.round.deadline
        messages = (Message(wire.pack_task(task, *models), node, kind, ttl=ttl) for node in nodes)
        return messages, wire.size(wire.pack_task(task, *models))

    def _read(self, content: RecordDict, fingerprint: str | None) -> wire.Introduction:
        return wire.unpack_introduction(
            content,
            classes=self._class_count,
            fingerprint=fingerprint,
            limit_mb=self._config.round.max_message_mb,
        )

    def _is_connected(self, name: str, grid: StreamingGrid) -> bool:
        return name in self._roster and self._roster[name].node_id in set(grid.get_node_ids())

    def _comparable(
        self, found: dict[str, tuple[wire.Introduction, int]], round_number: int
    ) -> list[tuple[wire.Introduction, int]]:
        """Turn away sites whose fingerprint is of another form than the others'."""
        # Those who are in set the rule; only at the beginning does the majority.
        known = {member.name: member.fingerprint for member in self._roster.members if member.fingerprint is not None}
        if not known:
            known = {name: one.fingerprint for name, (one, _) in found.items() if one.fingerprint is not None}
        usual = common_form(known) if known else ""
        accepted = []
        for name in sorted(found):
            introduction, node = found[name]
            fingerprint = introduction.fingerprint
            if fingerprint is None or fingerprint.form == usual:
                accepted.append((introduction, node))
            else:
                self._turn_away(
                    node,
                    round_number,
                    f"{name}: {fingerprint.form} where the other sites have {usual}; "
                    f"all sites need {fingerprint.agreement}",
                )
        return accepted

    def _put_off(self, node: int, round_number: int, reason: str) -> None:
        """Leave a node out for now; it is asked again next round, unless it has failed too often."""
        self._reasons[reason] += 1
        if self._failures[node] >= _MOST_FAILURES:
            self._turned_away.add(node)
        self._audience.tell(SiteLeftOut("enrol", round_number, f"node {node}", reason))

    def _turn_away(self, node: int, round_number: int, reason: str) -> None:
        self._reasons[reason] += 1
        self._turned_away.add(node)
        self._audience.tell(SiteLeftOut("enrol", round_number, f"node {node}", reason))


def _clash(name: str) -> str:
    return f"another connected site is called {name!r}: each needs its own name"


def failure_of(reply: Message) -> str:
    """The reason Flower gives for a failure."""
    return f"error {reply.error.code}: {wire.plain_text(reply.error.reason or 'no reason given')}"


def content_of(reply: Message) -> RecordDict:
    """The content of a reply, or a `WireError` with the reason Flower gives for the failure."""
    if reply.has_error():
        raise wire.WireError(failure_of(reply))
    return reply.content
