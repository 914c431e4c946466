"""Asking sites who they are, and deciding who may take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flwr.app import Message, RecordDict

from common import wire
from common.classes import agreed_classes
from common.config import Config
from common.models import State
from server.events import Audience, ReplyAccepted, SiteLeftOut, StageStarted
from server.grid import StreamingGrid
from server.methods import Method
from server.roster import Member, Roster, common_form

_MOST_FAILURES = 3


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
        self._audience.tell(StageStarted("enrol", round_number, len(nodes)))
        found: dict[str, tuple[wire.Introduction, int]] = {}
        silent = set(nodes)
        # Once training has begun, all other sites wait meanwhile: a silent newcomer is tried again next round.
        limits = self._config.round
        timeout = limits.deadline if round_number == 0 else min(limits.deadline, limits.start_timeout)
        questions, sent = self._questions(nodes, round_number)
        for reply in grid.send_and_receive(questions, timeout=timeout):
            node = grid.node_of(reply)
            silent.discard(node)
            if reply.has_error():
                self._failures[node] += 1
                self._put_off(node, round_number, failure_of(reply))
                continue
            try:
                introduction = self._read(reply.content)
            except wire.WireError as error:
                self._turn_away(node, round_number, str(error))
                continue
            name = introduction.card.name
            if name in found or self._is_connected(name, grid):
                # Perhaps the same site, restarted, whose old node is not yet known to be gone.
                self._put_off(node, round_number, f"another connected site is called {name!r}: each needs its own name")
                continue
            found[name] = (introduction, node)
            received = wire.size(reply.content)
            self._audience.tell(
                ReplyAccepted("enrol", round_number, introduction.card.name, sent, received, introduction.seconds)
            )
        for node in sorted(silent):
            self._failures[node] += 1
            self._put_off(node, round_number, f"no answer within {timeout:.0f} s")
        return self._comparable(found, round_number)

    def ask_again(
        self, grid: StreamingGrid, members: Sequence[Member], round_number: int
    ) -> dict[str, wire.Introduction]:
        """Ask members anew for card and fingerprint, because their data changed; return the usable answers by name."""
        self._audience.tell(StageStarted("confirm", round_number, len(members)))
        silent = {member.node_id: member for member in members}
        answers: dict[str, wire.Introduction] = {}
        timeout = min(self._config.round.deadline, self._config.round.start_timeout)
        questions, sent = self._questions([member.node_id for member in members], round_number)
        for reply in grid.send_and_receive(questions, timeout=timeout):
            member = silent.pop(grid.node_of(reply), None)
            if member is None:
                continue
            try:
                introduction = self._read(content_of(reply))
                self._check_same(member, introduction)
            except wire.WireError as error:
                self._audience.tell(SiteLeftOut("confirm", round_number, member.name, str(error)))
                continue
            answers[member.name] = introduction
            received = wire.size(reply.content)
            self._audience.tell(
                ReplyAccepted("confirm", round_number, member.name, sent, received, introduction.seconds)
            )
        for member in silent.values():
            reason = f"no answer within {timeout:.0f} s"
            self._audience.tell(SiteLeftOut("confirm", round_number, member.name, reason))
        return {name: answers[name] for name in sorted(answers)}

    def _check_same(self, member: Member, introduction: wire.Introduction) -> None:
        if introduction.card.name != member.name:
            raise wire.WireError(f"calls itself {introduction.card.name!r} now")
        known, fresh = member.fingerprint, introduction.fingerprint
        if known is not None and fresh is not None and known.form != fresh.form:
            raise wire.WireError(f"{fresh.form} where it had {known.form} before")

    def _questions(self, nodes: list[int], round_number: int) -> tuple[Iterator[Message], int]:
        """Return one message per node, and the bytes of each."""
        task = wire.Task(self._config.for_site(), round_number, self._config.rounds)
        # Serialised once: all questions share the record.
        model = wire.pack_arrays(self._initial) if self._method.fingerprint_needs_model else None
        kind = f"query.{self._method.fingerprint or 'hello'}"
        ttl = self._config.round.deadline
        messages = (Message(wire.pack_task(task, model), node, kind, ttl=ttl) for node in nodes)
        return messages, wire.size(wire.pack_task(task, model))

    def _read(self, content: RecordDict) -> wire.Introduction:
        return wire.unpack_introduction(
            content,
            classes=self._class_count,
            fingerprint=self._method.fingerprint,
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


def failure_of(reply: Message) -> str:
    """The reason Flower gives for a failure."""
    return f"error {reply.error.code}: {wire.plain_text(reply.error.reason or 'no reason given')}"


def content_of(reply: Message) -> RecordDict:
    """The content of a reply, or a `WireError` with the reason Flower gives for the failure."""
    if reply.has_error():
        raise wire.WireError(failure_of(reply))
    return reply.content
