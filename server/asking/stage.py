"""Asking sites: the only place that announces a stage, sends, counts bytes, times out and names the silent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common import wire
from common.clock import TOLERANCE
from common.extras import InvalidExtras
from server.aggregation import RejectedUpdate
from server.asking.grid import StreamingGrid
from server.history.events import Audience, ReplyAccepted, SiteLeftOut, Stage, StageStarted

_log = logging.getLogger("coterie")


class Addressee(Protocol):
    """Somebody who can be asked."""

    @property
    def name(self) -> str:
        """Under which it is told of."""

    @property
    def node_id(self) -> int:
        """Where it is."""


class Answer(Protocol):
    """What a question is answered with."""

    @property
    def seconds(self) -> float:
        """What it cost the site."""


# Errors that say what is wrong with an answer.
UNUSABLE = (wire.WireError, InvalidExtras, RejectedUpdate)

M = TypeVar("M", bound=Addressee)
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class Question:
    """One message: its content, Flower's type for it, and what its answer is told as, if not as the exchange is."""

    content: RecordDict
    kind: str
    stage: Stage | None = None
    round_number: int | None = None


@dataclass(frozen=True)
class Failure:
    """Why there is no usable answer.

    `is_wrong`: there is one, but not what it should be. `is_passing`: the site says that it may answer in a while.
    """

    reason: str
    is_wrong: bool = False
    is_passing: bool = False


class Exchange(Generic[M, A]):
    """One question to each of some members, and their answers as they come.

    `messages` and `answers` are apart because in a round Flower's own loop stands between them; everybody else calls
    `ask`.

    Parameters
    ----------
    audience
        Hears that the stage begins, whose answer was accepted, and who is left out.
    stage, round_number
        What this is told as.
    members
        Who is asked, in this order.
    question
        Makes the message for a member, just before it is sent.
    read
        Turns what a member answered into a value and takes it in; one of `UNUSABLE` is raised for what cannot be used.
    timeout
        Seconds after which a member that has not answered is silent; `limits` says which settings those are.
    fail
        Is told of a member without a usable answer, in the place of the audience.
    """

    def __init__(
        self,
        audience: Audience,
        stage: Stage,
        round_number: int,
        members: Sequence[M],
        question: Callable[[M], Question],
        read: Callable[[M, RecordDict], A],
        *,
        timeout: float,
        limits: str = "round.deadline",
        fail: Callable[[M, Failure], None] | None = None,
        name: Callable[[M, A], str] = lambda member, answer: member.name,
    ) -> None:
        self._audience = audience
        self._stage, self._round_number = stage, round_number
        self._waiting = {member.node_id: member for member in members}
        self._question: Callable[[M], Question] | None = question
        self._read, self._name = read, name
        self._timeout, self._limits = timeout, limits
        # Not a method of its own in the place of None: an exchange that refers to itself, and with it all the models of
        # its round, would wait for a full collection, which is rare where there are many objects.
        self._told_of_failures = fail
        # Stage, round and bytes of what each node was sent.
        self._sent: dict[int, tuple[Stage, int, int]] = {}
        audience.tell(StageStarted(stage, round_number, len(members)))

    def messages(self) -> Iterator[Message]:
        """Make one message after the other, as the Grid has room for them."""
        for node, member in list(self._waiting.items()):
            assert self._question is not None
            question = self._question(member)
            number = self._round_number if question.round_number is None else question.round_number
            self._sent[node] = (question.stage or self._stage, number, wire.size(question.content))
            # Longer than it is waited for: where the site's clock is ahead it ends sooner.
            yield Message(question.content, node, question.kind, ttl=self._timeout + TOLERANCE)
        # What it makes messages from, such as a model as bytes, is as large as a model.
        self._question = None

    def answers(self, replies: Iterable[Message], grid: Grid) -> Iterator[tuple[M, A | None]]:
        """Yield each member that replied with its answer, None if that cannot be used; then name the silent."""
        for reply in replies:
            node = grid.node_of(reply) if isinstance(grid, StreamingGrid) else reply.metadata.src_node_id
            member = self._waiting.pop(node, None)
            if member is None:
                _log.warning("ignored a reply from node %d that nobody is waiting for", node)
                continue
            yield member, self._answer(member, reply)
            # Before the next one is fetched: a reply may be as large as a model.
            del reply
        owing = grid.owing if isinstance(grid, StreamingGrid) else set()
        for member in sorted(self._waiting.values(), key=lambda member: member.name):
            if member.node_id in owing:
                # The stage ended early: who is late is told of by who ended it.
                continue
            reason = f"no reply within {self._timeout:.0f} s ({self._limits})"
            if isinstance(grid, StreamingGrid) and not grid.was_asked(member.node_id):
                reason = "its message could not be sent in time (round.deadline, round.in_flight)"
            self._fail(member, Failure(reason))

    @property
    def waiting(self) -> Iterable[M]:
        """Members that have not answered yet."""
        return self._waiting.values()

    def _answer(self, member: M, reply: Message) -> A | None:
        if reply.has_error():
            reason = f"error {reply.error.code}: {wire.plain_text(reply.error.reason or 'no reason given')}"
            self._fail(member, Failure(reason))
            return None
        try:
            answer = self._read(member, reply.content)
        except UNUSABLE as error:
            passing = isinstance(error, wire.Refusal) and error.passing
            self._fail(member, Failure(str(error), is_wrong=not passing, is_passing=passing))
            return None
        stage, number, sent = self._sent[member.node_id]
        received = wire.size(reply.content)
        name = self._name(member, answer)
        # Cards and updates of sites with a privacy budget say what it has come to.
        spending = getattr(answer, "spending", None)
        self._audience.tell(ReplyAccepted(stage, number, name, sent, received, answer.seconds, spending))
        return answer

    def _fail(self, member: M, failure: Failure) -> None:
        if self._told_of_failures is not None:
            self._told_of_failures(member, failure)
            return
        stage, number, _ = self._sent.get(member.node_id, (self._stage, self._round_number, 0))
        self._audience.tell(SiteLeftOut(stage, number, member.name, failure.reason))


def ask(exchange: Exchange[M, A], grid: StreamingGrid, timeout: float) -> Iterator[tuple[M, A]]:
    """Send the questions of an exchange and yield the usable answers, as they come."""
    for member, answer in exchange.answers(grid.send_and_receive(exchange.messages(), timeout=timeout), grid):
        if answer is not None:
            yield member, answer
