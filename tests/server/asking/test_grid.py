"""The streaming Grid: a deadline, a cap, every reply as it comes, and who it is from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.superlink.grid.http_grid import HttpGrid

from common import wire
from server.asking.grid import RunInterrupted, StreamingGrid
from server.flower.messages import NodeInfo, node_unavailable, set_message_id
from server.flower.patience import is_wait
from tests.support.loopback import SUPERLINK, LoopbackGrid


class ScriptedGrid(LoopbackGrid):
    """Answers each message after the next `delay` pulls; records how many were under way at most."""

    def __init__(self, sites: int, silent: frozenset[int] = frozenset(), delay: int = 1) -> None:
        super().__init__(sites)
        self._silent = silent
        self._delay = delay
        self._due: dict[str, int] = {}
        self._messages: dict[str, Message] = {}
        self.most_in_flight = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"m{len(self._messages)}"
            set_message_id(message, message_id)
            self._messages[message_id] = message
            self._due[message_id] = self._delay
            ids.append(message_id)
        self.most_in_flight = max(self.most_in_flight, len(self._due))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = []
        for message_id in message_ids:
            self._due[message_id] -= 1
            node = self._messages[message_id].metadata.dst_node_id
            if self._due[message_id] < 0 and node not in self._silent:
                del self._due[message_id]
                arrived.append(error_from_superlink(message_id))
        return arrived


def error_from_superlink(reply_to: str) -> Message:
    return node_unavailable(reply_to, SUPERLINK, "node unavailable")


def messages(nodes: Iterable[int]) -> Iterator[Message]:
    return (Message(RecordDict(), node, "train", ttl=60) for node in nodes)


def test_every_reply_arrives_and_errors_are_traced_to_the_node_that_was_asked() -> None:
    grid = StreamingGrid(ScriptedGrid(5), deadline=5)
    nodes = [grid.node_of(reply) for reply in grid.send_and_receive(messages(range(100, 105)))]
    assert sorted(nodes) == [100, 101, 102, 103, 104]


def test_replies_that_come_together_come_in_the_order_of_asking() -> None:
    """Groups are asked one after the other: so many replies, and one group's average is open at a time."""
    grid = StreamingGrid(ScriptedGrid(30), deadline=5)
    nodes = [grid.node_of(reply) for reply in grid.send_and_receive(messages(range(100, 130)))]
    assert nodes == list(range(100, 130))


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_no_more_messages_are_under_way_than_allowed(cap: int) -> None:
    inner = ScriptedGrid(7)
    grid = StreamingGrid(inner, deadline=5, in_flight=cap)
    assert len(list(grid.send_and_receive(messages(range(100, 107))))) == 7
    assert inner.most_in_flight == cap


def test_without_a_cap_all_are_sent_at_once() -> None:
    inner = ScriptedGrid(7)
    list(StreamingGrid(inner, deadline=5).send_and_receive(messages(range(100, 107))))
    assert inner.most_in_flight == 7


def test_the_deadline_ends_a_stage_without_the_silent() -> None:
    grid = StreamingGrid(ScriptedGrid(3, silent=frozenset({101})), deadline=0.3)
    start = time.monotonic()
    nodes = {grid.node_of(reply) for reply in grid.send_and_receive(messages([100, 101, 102]))}
    assert nodes == {100, 102}
    assert time.monotonic() - start >= 0.3


def test_flowers_timeout_can_only_shorten_the_deadline() -> None:
    grid = StreamingGrid(ScriptedGrid(1, silent=frozenset({100})), deadline=60)
    assert list(grid.send_and_receive(messages([100]), timeout=0.1)) == []


def test_replies_are_yielded_while_others_are_still_missing() -> None:
    grid = StreamingGrid(ScriptedGrid(2, silent=frozenset({101})), deadline=60)
    assert grid.node_of(next(iter(grid.send_and_receive(messages([100, 101]))))) == 100


def test_an_operator_can_stop_the_waiting() -> None:
    stop = threading.Event()
    grid = StreamingGrid(ScriptedGrid(1, silent=frozenset({100})), deadline=60, stop=stop)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(RunInterrupted):
        list(grid.send_and_receive(messages([100])))
    with pytest.raises(RunInterrupted):
        grid.wait_for_nodes(5, timeout=60)


def test_waiting_for_nodes_ends_with_those_that_came() -> None:
    grid = StreamingGrid(LoopbackGrid(3), deadline=1)
    assert grid.wait_for_nodes(3, timeout=60) == [100, 101, 102]
    assert grid.wait_for_nodes(4, timeout=0.1) == [100, 101, 102]


def test_nothing_to_send_is_nothing_to_wait_for() -> None:
    assert list(StreamingGrid(LoopbackGrid(1), deadline=60).send_and_receive(iter(()))) == []


def test_a_node_whose_message_was_never_sent_is_told_from_a_silent_one() -> None:
    grid = StreamingGrid(ScriptedGrid(2, silent=frozenset({100})), deadline=0.2, in_flight=1)
    assert list(grid.send_and_receive(messages([100, 101]))) == []
    assert grid.was_asked(100)
    assert not grid.was_asked(101)


def test_a_long_wait_is_looked_into_more_rarely_but_never_ends_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a request to the SuperLink for every message under way."""
    clock, looks = [0.0], []
    inner = ScriptedGrid(1, silent=frozenset({100}))
    pull = inner.pull_messages

    def look(message_ids: Iterable[str]) -> Iterable[Message]:
        looks.append(clock[0])
        return pull(message_ids)

    monkeypatch.setattr(inner, "pull_messages", look)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(StreamingGrid, "_pause", lambda grid, seconds: clock.__setitem__(0, clock[0] + seconds))
    assert list(StreamingGrid(inner, deadline=600).send_and_receive(messages([100]))) == []
    pauses = np.diff(looks)
    assert max(pauses[:20]) <= 0.25
    assert all(pauses <= np.maximum(0.25, 0.02 * np.array(looks[:-1])) + 1e-9)
    assert len(looks) < 400
    assert looks[-1] == 600


class RestartingGrid(ScriptedGrid):
    """Never answers; `times` tells since when each node has been online, from one look to the next."""

    def __init__(self, times: Sequence[Mapping[int, str]], silent: Iterable[int] = (100, 101, 102)) -> None:
        super().__init__(3, silent=frozenset(silent))
        self._times = iter(times)
        self._last: Mapping[int, str] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        self._last = next(self._times, self._last)
        return [NodeInfo(node_id=node, last_activated_at=since) for node, since in self._last.items()]


def replies_of(
    inner: ScriptedGrid, monkeypatch: pytest.MonkeyPatch, in_flight: int = 0
) -> list[tuple[int, float, str]]:
    """Who answered, after how many seconds of a clock that only waiting moves, and in which words."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(StreamingGrid, "_pause", lambda grid, seconds: clock.__setitem__(0, clock[0] + seconds))
    grid = StreamingGrid(inner, deadline=600, in_flight=in_flight)
    replies = grid.send_and_receive(messages([100, 101, 102]))
    return [(grid.node_of(reply), clock[0], reply.error.reason) for reply in replies]  # type: ignore[misc]


def test_a_node_that_was_killed_and_is_back_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower says nothing of it when it is back before anybody looked."""
    before = {100: "1", 101: "1", 102: "1"}
    ((node, seconds, reason),) = replies_of(RestartingGrid([before, before, before | {101: "2"}]), monkeypatch)
    assert node == 101
    assert 10 < seconds < 12
    assert "came back" in reason


def test_a_node_that_is_offline_is_left_to_flower_and_one_that_was_not_seen_before_to_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = RestartingGrid([{100: "1", 101: "1"}, {100: "1"}, {100: "1", 102: "1"}])
    assert replies_of(inner, monkeypatch) == []
    # Offline when somebody looked, back later.
    inner = RestartingGrid([{100: "1", 101: "1"}, {100: "1"}, {100: "1", 101: "2"}])
    assert [node for node, _, _ in replies_of(inner, monkeypatch)] == [101]


def test_a_reply_that_was_sent_before_its_node_was_killed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {100: "1", 101: "1", 102: "1"}
    inner = RestartingGrid([before, before | {100: "2"}], silent=(101, 102))
    inner._delay = 25  # longer than until the first look
    replies = replies_of(inner, monkeypatch)
    assert [(node, reason) for node, _, reason in replies] == [(100, "node unavailable")]


def test_a_node_that_was_away_before_it_was_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time: 101 is asked when 100 is given up, or has answered; it was away between the last look and then."""
    before = {100: "1", 101: "1", 102: "1"}
    assert [node for node, _, _ in replies_of(RestartingGrid([before, {100: "2", 101: "2"}]), monkeypatch, 1)] == [100]
    inner = RestartingGrid([before, before, before | {101: "2"}], silent=(101, 102))
    inner._delay = 33
    ((node, seconds, reason),) = replies_of(inner, monkeypatch, in_flight=1)
    assert (node, reason) == (100, "node unavailable")
    assert 6.1 < seconds < 9.9, "between two looks"


class CountingGrid(ScriptedGrid):
    """Notes for how many replies it was asked at once; each reply carries `size` bytes."""

    def __init__(self, sites: int, size: int) -> None:
        super().__init__(sites, delay=0)
        self.portions: list[int] = []
        self._content = RecordDict({"model": wire.pack_arrays({"weights": np.zeros(size // 4, np.float32)})})

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        message_ids = list(message_ids)
        self.portions.append(len(message_ids))
        for message_id in message_ids:
            del self._due[message_id]
            reply = error_from_superlink(message_id)
            yield make_message(metadata=reply.metadata, content=self._content)


def test_small_replies_are_asked_for_together_and_large_ones_apart() -> None:
    for size, portions in ((1_000, [8, 32]), (200_000_000, [8] + 32 * [1])):
        inner = CountingGrid(40, size)
        grid = StreamingGrid(inner, deadline=60)
        assert len(list(grid.send_and_receive(messages(range(100, 140))))) == 40
        assert inner.portions == portions


# Through a SuperLink


class Wire(HttpGrid):
    """A SuperLink with one site, as a ServerApp sees it; of one that `holds`, a look waits for the answer."""

    def __init__(self, *, holds: bool) -> None:
        super().__init__(token="a token")
        self._holds, self._held, self.asked = holds, 0, list[Message]()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked += messages
        return ["question"]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (asked,) = message_ids
        if is_wait(asked):
            self._held += 1
            return [] if self._holds else [error_from_superlink(asked)]
        if not self._held:
            return []
        reply = error_from_superlink("question")
        return [make_message(metadata=reply.metadata, content=wire.fold(CONTENT))]


CONTENT = RecordDict({"model": wire.pack_arrays({"weights": np.zeros(5, np.float32)})})


@pytest.mark.parametrize("holds", [True, False], ids=["ours", "Flower's"])
def test_a_superlink_tells_of_answers_and_messages_travel_in_one_piece(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(StreamingGrid, "_pause", lambda grid, seconds: pauses.append(seconds))
    inner = Wire(holds=holds)
    question = Message(CONTENT, 100, "train", ttl=60)
    (reply,) = StreamingGrid(inner, deadline=60).send_and_receive([question])
    assert wire.is_folded(inner.asked[0].content)
    assert reply.content == CONTENT
    assert bool(pauses) != holds


def test_a_reply_that_cannot_be_unfolded_is_left_to_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CONTENT", RecordDict({"folded": ConfigRecord({"model": "text"})}))
    (reply,) = StreamingGrid(Wire(holds=True), deadline=60).send_and_receive([Message(CONTENT, 100, "train", ttl=60)])
    assert wire.is_folded(reply.content)
