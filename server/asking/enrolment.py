"""Asking sites who they are, and deciding who may take part."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import RecordDict

from common import wire
from common.classes import agreed_classes
from common.config import Config
from common.state import State
from server.asking.grid import StreamingGrid
from server.asking.stage import Addressee, Exchange, Failure, Question, ask
from server.history.events import Audience, SiteLeftOut, Stage
from server.methods import Method
from server.roster import Member, Roster, common_form, common_weights

_log = logging.getLogger("coterie")

_MOST_FAILURES = 3
# Seconds after which a site is asked again at the start that may answer in a while: its data are not there, its disk is
# full. A minute in all; after that it is asked once in every round.
_SECOND_TRIES = (2.0, 4.0, 8.0, 16.0, 30.0)

# Of a round, to a member or to somebody who is not known yet.
WriteTask = Callable[[int, Member | None], wire.Task]


@dataclass(frozen=True)
class _Node:
    """A connected node that has not said yet who it is; `registered` is the name that its key stands for, if any."""

    node_id: int
    registered: str = ""

    @property
    def name(self) -> str:
        return self.registered or f"node {self.node_id}"


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
    task
        Writes what those who are asked are told.
    """

    def __init__(
        self, config: Config, method: Method, initial: State, roster: Roster, audience: Audience, task: WriteTask
    ) -> None:
        self._config = config
        self._method = method
        self._initial = initial
        self._roster = roster
        self._audience = audience
        self._task = task
        self._class_count = len(agreed_classes(config.data))
        # Nodes that are not asked again: what they said was wrong, or they failed too often.
        self._turned_away: set[int] = set()
        self._failures: Counter[int] = Counter()
        # Node → the name that its key is registered under, where nodes prove who they are.
        self._registered: dict[int, str] = {}
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
        end = time.monotonic() + self._config.round.start_timeout
        # In a round all other sites would wait for the second try.
        pauses = list(_SECOND_TRIES) if round_number == 0 else []
        while nodes:
            may_wait = bool(pauses) and time.monotonic() + pauses[0] < end
            away = self._introduced(grid, nodes, round_number, found, is_last_try=not may_wait)
            if away:
                grid.rest(pauses.pop(0))
            nodes = sorted(away & set(grid.get_node_ids()))
        return self._comparable(self._alike(found, round_number), round_number)

    def _introduced(
        self,
        grid: StreamingGrid,
        nodes: list[int],
        round_number: int,
        found: dict[str, tuple[wire.Introduction, int]],
        *,
        is_last_try: bool,
    ) -> set[int]:
        """Ask nodes who they are, and put what they say into `found`; return who is to be asked again in a while."""
        away: set[int] = set()
        # Once training has begun, all other sites wait meanwhile: a silent newcomer is tried again next round.
        timeout = self._config.round.deadline if round_number == 0 else self._patience

        def fail(node: Addressee, failure: Failure) -> None:
            if failure.is_wrong:
                self._turn_away(node, round_number, failure.reason)
            elif failure.is_passing and not is_last_try:
                away.add(node.node_id)
                _log.warning("%s: %s; it is asked again in a while", node.name, failure.reason)
            elif failure.is_passing:
                self._put_off(node, round_number, failure.reason)
            else:
                self._failures[node.node_id] += 1
                self._put_off(node, round_number, failure.reason)

        asked = self._nodes(grid, nodes)
        for node, introduction in self._ask("enrol", grid, asked, round_number, timeout, fail, _own_name):
            name = introduction.card.name
            if name in found or self._is_connected(name, grid):
                # Perhaps the same site, restarted, whose old node is not yet known to be gone.
                self._put_off(node, round_number, _clash(name))
                continue
            found[name] = (introduction, node.node_id)
        return away

    def ask_again(
        self, grid: StreamingGrid, members: Sequence[Member], round_number: int
    ) -> dict[str, wire.Introduction]:
        """Ask members anew for card and fingerprint, because their data changed; return the usable answers by name."""

        def fail(member: Addressee, failure: Failure) -> None:
            self._audience.tell(SiteLeftOut("confirm", round_number, member.name, failure.reason))

        def check(member: Addressee, introduction: wire.Introduction) -> None:
            if reason := _contradiction(self._roster[member.name], introduction):
                raise wire.WireError(reason)

        answers = self._ask("confirm", grid, members, round_number, self._patience, fail, check)
        return dict(sorted((member.name, introduction) for member, introduction in answers))

    def recognise(self, grid: StreamingGrid, nodes: list[int], round_number: int) -> dict[str, int]:
        """Ask nodes only for their names; return the nodes of known members. Nobody is turned away for anything."""
        seats: dict[str, int] = {}

        def fail(node: Addressee, failure: Failure) -> None:
            self._put_off(node, round_number, failure.reason)

        asked, deadline = self._nodes(grid, nodes), self._config.round.deadline
        for node, introduction in self._ask(
            "enrol", grid, asked, round_number, deadline, fail, _own_name, names_only=True
        ):
            name = introduction.card.name
            if name in seats:
                self._put_off(node, round_number, _clash(name))
            elif name in self._roster:
                seats[name] = node.node_id
        return seats

    @property
    def _patience(self) -> float:
        """Seconds for which everybody waits for the answer of a few."""
        return min(self._config.round.deadline, self._config.round.start_timeout)

    def _ask(
        self,
        stage: Stage,
        grid: StreamingGrid,
        asked: Sequence[Addressee],
        round_number: int,
        timeout: float,
        fail: Callable[[Addressee, Failure], None],
        check: Callable[[Addressee, wire.Introduction], None] = lambda one, introduction: None,
        *,
        names_only: bool = False,
    ) -> Iterator[tuple[Addressee, wire.Introduction]]:
        """Yield the introductions of those who answer, as they come."""
        fingerprint = None if names_only else self._method.fingerprint
        # Serialised once: all questions share the record.
        needs_model = fingerprint is not None and self._method.fingerprint_needs_model
        model = wire.pack_arrays(self._initial) if needs_model else None

        def read(one: Addressee, content: RecordDict) -> wire.Introduction:
            introduction = wire.unpack_introduction(
                content,
                classes=self._class_count,
                fingerprint=fingerprint,
                limit_mb=self._config.round.max_message_mb,
            )
            check(one, introduction)
            return introduction

        exchange = Exchange(
            self._audience,
            stage,
            round_number,
            asked,
            lambda one: Question(
                wire.pack_task(self._task(round_number, self._roster.at_node(one.node_id)), model),
                f"query.{fingerprint or 'hello'}",
            ),
            read,
            timeout=timeout,
            limits="round.deadline" if timeout == self._config.round.deadline else "round.start_timeout",
            fail=fail,
            name=lambda one, introduction: introduction.card.name,
        )
        return ask(exchange, grid, timeout)

    def _is_connected(self, name: str, grid: StreamingGrid) -> bool:
        return name in self._roster and self._roster[name].node_id in set(grid.get_node_ids())

    def _alike(
        self, found: dict[str, tuple[wire.Introduction, int]], round_number: int
    ) -> dict[str, tuple[wire.Introduction, int]]:
        """Turn away sites whose pretrained weights are not the others': what is tuned would fit nothing."""
        # Those who are in set the rule; only at the beginning does the majority.
        known = [member.card for member in self._roster.members] or [one.card for one, _ in found.values()]
        usual = common_weights(known)
        for name, (introduction, node) in sorted(found.items()):
            if (own := introduction.card.weights) != usual:
                self._turn_away(
                    _Node(node, self._registered.get(node, "")),
                    round_number,
                    f"{name}: {_other_weights(self._config, own, usual)}",
                )
        return {name: one for name, one in found.items() if one[0].card.weights == usual}

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
                    _Node(node, self._registered.get(node, "")),
                    round_number,
                    f"{name}: {fingerprint.form} where the other sites have {usual}; "
                    f"all sites need {fingerprint.agreement}",
                )
        return accepted

    def _nodes(self, grid: StreamingGrid, nodes: list[int]) -> list[_Node]:
        self._registered |= grid.registered_names()
        return [_Node(node, self._registered.get(node, "")) for node in nodes]

    def _put_off(self, node: Addressee, round_number: int, reason: str) -> None:
        """Leave a node out for now; it is asked again next round, unless it has failed too often."""
        self._reasons[reason] += 1
        if self._failures[node.node_id] >= _MOST_FAILURES:
            self._turned_away.add(node.node_id)
        self._audience.tell(SiteLeftOut("enrol", round_number, node.name, reason))

    def _turn_away(self, node: Addressee, round_number: int, reason: str) -> None:
        self._reasons[reason] += 1
        self._turned_away.add(node.node_id)
        self._audience.tell(SiteLeftOut("enrol", round_number, node.name, reason))


def _own_name(node: Addressee, introduction: wire.Introduction) -> None:
    """Raise unless a site calls itself as its key is registered."""
    registered = node.registered if isinstance(node, _Node) else ""
    if registered and introduction.card.name != registered:
        raise wire.WireError(f"calls itself {introduction.card.name!r}, but its key is registered as {registered!r}")


def _contradiction(member: Member, introduction: wire.Introduction) -> str:
    """What in a new introduction cannot come from the member it is ascribed to."""
    if introduction.card.name != member.name:
        return f"calls itself {introduction.card.name!r} now"
    if introduction.card.weights != member.card.weights:
        return "has other pretrained weights now"
    known, fresh = member.fingerprint, introduction.fingerprint
    if known is not None and fresh is not None and known.form != fresh.form:
        return f"{fresh.form} where it had {known.form} before"
    return ""


def _other_weights(config: Config, own: str, usual: str) -> str:
    return (
        f"its weights of {config.train.model} ({own[:12] or 'none'}) are not those of the other sites "
        f"({usual[:12] or 'none'}); all sites need the same file, or the same release of the package or of timm"
    )


def _clash(name: str) -> str:
    return f"another connected site is called {name!r}: each needs its own name"
