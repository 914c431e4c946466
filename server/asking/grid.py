"""A Grid with a deadline, a cap on messages in flight, and replies that are yielded as they come.

It wraps any Flower Grid, in a simulation as in a deployment, and leaves Flower's round loop as it is: `start()` hands
the iterable that `send_and_receive` returns straight to the strategy, so a reply can be folded into its group's average
and forgotten while others are still on their way. No more are fetched at once than fit into a fixed amount of memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.wire import WireError, fold, size, unfold
from server.flower.messages import NodeInfo, Run, node_unavailable
from server.flower.patience import carry, waiting_room

# Seconds between two looks for replies. Each look costs the SuperLink a request per message under way, so a wait that
# has been long may be a little longer: by this part of it, up to the longest pause.
_FIRST_PAUSE = 0.005
_PAUSE = 0.25
_PART_OF_WAIT = 0.02
_LONGEST_PAUSE = 3.0
# Where the SuperLink holds a look until there is something, it need not end before.
_HELD = 1.0
# A request costs the SuperLink about as much for one message as for many, but brings all that are ready: so it asks for
# as many as fit into this memory by the largest reply so far, and for a few as long as there was none.
_MOST_BYTES = 256_000_000
_FIRST_PORTION = 8
# Seconds between two looks at whether those who owe a reply have been away.
_LOOK = 5.0
_FRESH = 1.0  # how many seconds ago a node was seen online, at most, when it is sent a message
_WAS_AWAY = "it went offline and came back meanwhile: its reply is not waited for"


STOPPED = "stopped by the operator"


@dataclass(frozen=True)
class Watch:
    """How a stage may end early.

    Attributes
    ----------
    enough
        Whether it may end now; those who are still under way then owe their answers.
    late
        Hears what is owed from earlier stages as it comes: the node, and its answer.
    """

    enough: Callable[[], bool]
    late: Callable[[int, Message], None]


@dataclass(frozen=True)
class _Owed:
    node: int
    until: float
    since: str


class RunInterrupted(Exception):
    """The operator asked the run to stop."""


class Attendance:
    """Who has been online all the time since it was asked.

    A killed SuperNode loses its task. Flower answers in its place, but only if it is asked for the reply while the node
    is offline: one that is back before would be waited for until the deadline.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        # Node → since when it has been online, now and when it was asked.
        self._since: dict[int, str] = {}
        self._when_asked: dict[int, str] = {}
        self._looked = self._checked = time.monotonic()
        self._look()

    def _look(self) -> None:
        self._since = {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}
        self._looked = time.monotonic()

    def asked(self, node: int) -> None:
        """Note that a node is about to be sent a message."""
        if time.monotonic() - self._looked > _FRESH:
            self._look()
        self._when_asked[node] = self._since.get(node, "")

    def when_asked(self, node: int) -> str:
        """Since when a node had been online when it was asked."""
        return self._when_asked.get(node, "")

    def has_been_away(self, node: int, since: str) -> bool:
        """Whether a node that had been online since then is online again, but was not all the time."""
        return bool(since) and self._since.get(node, since) != since

    def away(self) -> set[int]:
        """Look, if the last time is a while ago, and return those who are online again, but were not all the time."""
        if time.monotonic() - self._checked <= _LOOK:
            return set()
        self._look()
        self._checked = self._looked
        return {node for node, then in self._when_asked.items() if self.has_been_away(node, then)}


class StreamingGrid(Grid):
    """Wrap `grid`.

    Parameters
    ----------
    grid
        The Grid that Flower passed to the ServerApp.
    deadline
        Seconds after which a stage ends without the missing replies. Flower's `timeout` can only shorten it.
    in_flight
        Most messages under way at once; 0 means no limit.
    stop
        When set, waiting ends with `RunInterrupted`.
    """

    def __init__(self, grid: Grid, *, deadline: float, in_flight: int = 0, stop: threading.Event | None = None) -> None:
        self._grid = grid
        self._deadline = deadline
        self._in_flight = in_flight
        self._stop = stop or threading.Event()
        self._asked: dict[str, int] = {}
        self._largest = 0
        # Of stages that ended early: messages whose answer is still to come.
        self._owed: dict[str, _Owed] = {}
        self._watch: Watch | None = None
        self._wait = waiting_room(grid)
        self._carry = carry(grid)

    def set_run(self, run: Run) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Pass on."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message; part of Flower's interface."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Pass on."""
        return self._grid.get_nodes()

    def registered_names(self) -> dict[int, str]:
        """Under which name the key of each connected node is registered; empty where nodes prove nothing."""
        return {node.node_id: node.name for node in self._grid.get_nodes() if node.name}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def wait_for_nodes(self, count: int, timeout: float) -> list[int]:
        """Return the connected nodes once there are `count` of them, or those there are after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) >= count or time.monotonic() >= end:
                return nodes
            self._pause(0.1)

    def rest(self, seconds: float) -> None:
        """Let so much time pass, unless the operator wants the run to stop."""
        self._pause(seconds)

    def was_asked(self, node_id: int) -> bool:
        """Whether the last stage got as far as sending this node its message."""
        return node_id in self._asked.values()

    @property
    def owing(self) -> set[int]:
        """Nodes that still owe the answer to a question of a stage that ended before it came."""
        return {owed.node for owed in self._owed.values()}

    def watch(self, watch: Watch) -> None:
        """Let the next stage end early, and let it hear what is still owed."""
        self._watch = watch

    def node_of(self, reply: Message) -> int:
        """Return the node that was asked the question `reply` answers."""
        return self._asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send `messages` and yield their replies one by one, until all came or time is up."""
        end = time.monotonic() + min(self._deadline, timeout if timeout is not None else self._deadline)
        outstanding: set[str] = set()
        self._asked = {}
        watch, self._watch = self._watch, None
        queue = iter(messages)
        exhausted = False
        pause, last_reply = _FIRST_PAUSE, time.monotonic()
        attendance = Attendance(self._grid)
        self._forget_lost(attendance)
        while True:
            while not exhausted and (not self._in_flight or len(outstanding) < self._in_flight):
                message = next(queue, None)
                if message is None:
                    exhausted = True
                    break
                node = message.metadata.dst_node_id
                attendance.asked(node)
                # One at a time, because Flower drops refused messages from the list of ids it returns.
                for message_id in self._grid.push_messages([self._folded(message)]):
                    if message_id:
                        outstanding.add(message_id)
                        self._asked[message_id] = node
            if exhausted and not outstanding and watch is None:
                return
            waited = time.monotonic() - last_reply
            pause = min(pause * 1.5, max(_PAUSE, _PART_OF_WAIT * waited), _LONGEST_PAUSE)
            # In the order of asking, which is group by group: of replies that come together those of one group come
            # before those of the next, whose average is not opened meanwhile.
            waiting = [one for one in self._asked if one in outstanding]
            # Before the replies are fetched: one that was sent before its node went away still counts.
            away = attendance.away()
            while waiting:
                portion = self._portion()
                replies = list(self._grid.pull_messages(waiting[:portion]))
                waiting = waiting[portion:]
                while replies:
                    reply = replies.pop(0)
                    outstanding.discard(reply.metadata.reply_to_message_id)
                    pause, last_reply = _FIRST_PAUSE, time.monotonic()
                    self._note_size(_unfolded(reply))
                    yield reply
                    del reply
            for message_id in sorted(late for late in outstanding if self._asked[late] in away):
                outstanding.discard(message_id)
                yield node_unavailable(message_id, self._asked[message_id], _WAS_AWAY)
            if self._ends(watch):
                owed = {one: self._asked[one] for one in outstanding}
                self._owed |= {one: _Owed(node, end, attendance.when_asked(node)) for one, node in owed.items()}
                return
            if time.monotonic() >= end:
                return
            if outstanding or watch is not None:
                self._await(min(pause, max(end - time.monotonic(), 0.0)))

    def _folded(self, message: Message) -> Message:
        """A question as it travels: in one piece, where it goes to other machines."""
        if self._wait is None:
            return message
        message.content = fold(message.content)
        return self._carry(message)

    def _forget_lost(self, attendance: Attendance) -> None:
        """An answer that is overdue, or was lost with its node's process, is owed no more."""
        self._owed = {
            one: owed
            for one, owed in self._owed.items()
            if owed.until > time.monotonic() and not attendance.has_been_away(owed.node, owed.since)
        }

    def _ends(self, watch: Watch | None) -> bool:
        """Fetch what is still owed, one answer after the other, as far as it is there; whether that is enough then."""
        if watch is None:
            return False
        for message_id, owed in sorted(self._owed.items()):
            for reply in self._grid.pull_messages([message_id]):
                del self._owed[message_id]
                watch.late(owed.node, _unfolded(reply))
        return watch.enough()

    def _portion(self) -> int:
        """For how many replies to ask at once."""
        return max(1, _MOST_BYTES // self._largest) if self._largest else _FIRST_PORTION

    def _note_size(self, reply: Message) -> None:
        if not reply.has_error():
            self._largest = max(self._largest, size(reply.content))

    def _await(self, seconds: float) -> None:
        """Pause, but no longer than until the next reply where a SuperLink tells of it."""
        if self._wait is None or not self._wait(max(seconds, _HELD)):
            self._pause(seconds)
        elif self._stop.is_set():
            raise RunInterrupted(STOPPED)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RunInterrupted(STOPPED)


def _unfolded(reply: Message) -> Message:
    """A reply as its site wrote it; one that cannot be taken apart stays as it is, and is refused for what it lacks."""
    if not reply.has_error():
        with suppress(WireError):
            reply.content = unfold(reply.content)
    return reply
