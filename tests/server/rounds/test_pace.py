"""Rounds that need not wait for everybody: who is late, what becomes of late updates, and the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.simulation.preflight import prepare
from common import wire
from common.config import Config, SettingsError, parse
from common.extras import Network
from common.site_card import SiteCard
from server.asking.grid import StreamingGrid
from server.history.event_log import read_events
from server.history.events import RoundClosed, RoundFinished, RoundTrained, SiteLeftOut
from server.methods import settle
from server.report import page, read_run
from server.roster import Member
from server.rounds.pace import Late, VirtualClock, VirtualPace, discounted, needed
from tests.support.loopback import LoopbackGrid
from tests.support.resuming import check_resumed
from tests.support.runs import MakeConfig, run, run_to_disk, update_in

_NONE = StreamingGrid(LoopbackGrid(0), deadline=1)


@given(st.floats(0.01, 1), st.integers(1, 200), st.integers(1, 5))
def test_a_share_is_reached_and_not_exceeded(share: float, members: int, least: int) -> None:
    count = needed(share, members, least)
    assert min(least, members) <= count <= members
    assert count + 1e-6 >= share * members
    assert count == min(least, members) or count - 1 < share * members + 1e-6


def test_the_share_of_twenty_is_what_one_would_count() -> None:
    assert [needed(share, 20, 1) for share in (0.05, 0.55, 0.8, 1.0)] == [1, 11, 16, 20]


@given(st.integers(1, 10**6), st.integers(0, 50))
def test_the_older_an_update_the_less_it_counts(samples: int, age: int) -> None:
    assert discounted(samples, 0) == samples
    assert samples >= discounted(samples, age) >= discounted(samples, age + 1) >= 1
    assert math.isclose(discounted(samples, age), max(1, samples / math.sqrt(1 + age)), abs_tol=0.51)


def members_of(sizes: list[list[int]]) -> dict[int, list[Member]]:
    found: dict[int, list[Member]] = {}
    for group, counts in enumerate(sizes):
        for place, count in enumerate(counts):
            card = SiteCard(f"{group}-{place:02d}", count, 5, (count,), 0, ())
            found.setdefault(group, []).append(Member(card, 100, None, group))
    return found


_SIZES = st.lists(st.lists(st.integers(5, 500), min_size=1, max_size=8), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(_SIZES, st.floats(0.05, 1), st.integers(0, 99), st.booleans(), st.sampled_from([3600.0, 0.5]))
def test_every_round_waits_for_its_share_and_every_late_update_comes_once(
    sizes: list[list[int]], enough: float, seed: int, takes: bool, deadline: float
) -> None:
    late = {"round.late": "next"} if takes and enough < 1 else {}
    config = parse({"round.enough": enough, "simulate.clock": 5.0, "seed": seed, "round.deadline": deadline, **late})
    pace, again, members = VirtualPace(config), VirtualPace(config), members_of(sizes)
    everybody = {member.name for of in members.values() for member in of}
    clock, now, due = VirtualClock(config.simulate, seed), 0.0, dict[str, tuple[int, float]]()
    for number in range(1, 7):
        asked = {member.name for of in pace.plan(number, members, _NONE, 1.0).train.values() for member in of}
        closed = pace.closed((), _NONE, {})
        # The same in any other process that goes on from what the last one knew.
        restored = VirtualPace(config)
        if again.state()["now"]:
            restored.restore(again.state())
        again = restored
        again.plan(number, members, _NONE, 1.0)
        assert again.closed((), _NONE, {}) == closed
        assert closed.seconds is not None
        assert now <= closed.seconds <= now + deadline
        busy, missing = set(closed.busy), set(closed.late)
        assert busy == {site for site, (_, when) in due.items() if when > now}
        assert not busy & missing
        on_time = everybody - busy - missing
        for of in members.values():
            free = [member.name for member in of if member.name not in busy]
            full = min(len(free), needed(enough, len(of), 1))
            assert len(on_time.intersection(free)) >= full or closed.seconds == now + deadline
        takes_seconds = {
            member.name: clock.seconds(member.name, member.card.train_samples, number)
            for of in members.values()
            for member in of
        }
        assert all(now + takes_seconds[name] <= closed.seconds for name in on_time)
        assert all(now + takes_seconds[name] > closed.seconds for name in missing)
        came = {late.site: late.round_number for late in pace.due()}
        assert came == {
            site: begun for site, (begun, when) in due.items() if now < when <= closed.seconds and late and begun > 0
        }
        for site in missing:
            lost = takes_seconds[site] > deadline
            due[site] = (0 if lost else number, now + min(takes_seconds[site], deadline))
            for one in (pace, again):
                assert one.hold(Late(number, site, 0, 1, {})) == (bool(late) and not lost)
        assert asked == on_time | ({site for site in missing if due[site][0]} if late else set())
        now = closed.seconds


_PACED = {"method": "fedavg", "round__enough": 0.5, "simulate__clock": 10.0, "simulate__spread": 1.0}


@pytest.mark.parametrize("late", ["drop", "next"])
def test_the_same_bits_in_any_order_of_replies(small_config: MakeConfig, tmp_path: Path, late: str) -> None:
    config = small_config(**_PACED, round__late=late, rounds=4)
    first = run_to_disk(config, tmp_path / "a")
    again = run_to_disk(config, tmp_path / "b", order_seed=3)
    assert (again / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()
    for model in (first / "models").iterdir():
        assert (again / "models" / model.name).read_bytes() == model.read_bytes()
    closed = read_events(first).of(RoundClosed)
    assert [event.round_number for event in closed] == [1, 2, 3, 4]
    assert closed == read_events(again).of(RoundClosed)
    assert any(event.taken for event in closed) == (late == "next")
    # Tests take no virtual time: every round is of all sites.
    assert {len(event.sites) for event in read_events(first).of(RoundFinished)} == {6}
    record = read_run(first)
    assert list(record.clock.values()) == sorted(event.seconds for event in closed if event.seconds)
    assert "Accuracy over virtual time" in page([record])


@pytest.mark.parametrize(
    ("method", "late"),
    [("fedavg", "next"), ("ditto", "next"), ("scaffold", "drop"), ("fmcl", "next"), ("ifca", "drop")],
)
def test_a_resumed_run_is_paced_as_one_that_was_never_cut_off(
    small_config: MakeConfig, tmp_path: Path, method: str, late: str
) -> None:
    k = {"cluster__k": 2} if method == "ifca" else {}
    check_resumed(small_config, tmp_path, stop=3, **{**_PACED, "method": method, "round__late": late, "rounds": 4}, **k)


def test_a_late_update_counts_less_and_its_site_is_not_asked_meanwhile(small_config: MakeConfig) -> None:
    config = small_config(**_PACED, round__late="next", rounds=4)
    made: dict[tuple[int, str], wire.Update] = {}

    def note(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train":
            made[wire.unpack_task(request.content).round_number, f"{index:03d}"] = update_in(reply)
        return reply

    record, _ = run(config, fault=note)
    models = {event.round_number: event.models[0] for event in record.of(RoundTrained)}
    for closed in record.of(RoundClosed):
        number = closed.round_number
        trained = {site for begun, site in made if begun == number}
        assert not trained.intersection(closed.busy)
        weights = {(number, site): made[number, site].samples for site in trained - set(closed.late)}
        for site, begun in closed.taken.items():
            weights[begun, site] = round(made[begun, site].samples / math.sqrt(1 + number - begun))
        for name, array in models[number].items():
            mean = sum(made[one].state[name].astype(np.float64) * weight for one, weight in weights.items())
            np.testing.assert_allclose(array, mean / sum(weights.values()), atol=1e-6)
    assert any(closed.taken for closed in record.of(RoundClosed))


def test_with_a_clock_alone_a_round_lasts_as_long_as_its_slowest_site(small_config: MakeConfig) -> None:
    plain, _ = run(small_config(method="fedavg"))
    for method, passes in (("fedavg", 1), ("ditto", 2)):
        config = small_config(method=method, simulate__clock=10.0, train__epochs=1)
        record, _ = run(config)
        clock, now = VirtualClock(config.simulate, config.seed), 0.0
        cards = {event.card.name: event.card for event in record.events if hasattr(event, "card")}
        for closed in record.of(RoundClosed):
            times = [
                clock.seconds(name, passes * card.train_samples, closed.round_number) for name, card in cards.items()
            ]
            now += max(times)
            assert math.isclose(closed.seconds, now)
            assert not closed.late
        if method == "fedavg":
            ours, theirs = record.of(RoundTrained)[-1].models[0], plain.of(RoundTrained)[-1].models[0]
            assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


class SlowSite(LoopbackGrid):
    """The last site's training takes until `open_` other answers have been fetched; nothing else is slow."""

    def __init__(self, sites: int, slow: int) -> None:
        super().__init__(sites)
        self._slow = slow
        self._kept: dict[str, int] = {}
        self.asked: list[int] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[Any] = []
        for message in messages:
            ids += super().push_messages([message])
            if message.metadata.message_type == "train":
                number = wire.unpack_task(message.content).round_number
                if message.metadata.dst_node_id == 100 + self._count - 1:
                    self.asked.append(number)
                    if number == self._slow:
                        self._kept[ids[-1]] = number
                elif number > self._slow:
                    # Everybody else is at work on the next round.
                    self._kept.clear()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([one for one in message_ids if one not in self._kept])


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_slow_site_of_a_federation_does_not_hold_the_rest(small_config: MakeConfig, late: str) -> None:
    config = small_config(method="fedavg", rounds=4, round__enough=0.8, round__late=late)
    record, grid = run(config, SlowSite(6, slow=1))
    assert isinstance(grid, SlowSite)
    closed = record.of(RoundClosed)
    assert [(event.late, event.busy) for event in closed[:2]] == [(("005",), ()), ((), ("005",))]
    assert [event.taken for event in closed] == [{}, {"005": 1} if late == "next" else {}, {}, {}]
    # Not asked while it is at work, and again once it has answered.
    assert grid.asked[:2] == [1, 3]
    assert not record.of(SiteLeftOut)
    assert all(event.seconds is None for event in closed)
    assert len(record.of(RoundFinished)[-1].sites) == 6
    first, second = (event.models[0] for event in record.of(RoundTrained)[:2])
    updates = [
        (task.round_number, update_in(reply))
        for request, reply in zip(grid.pushed, grid.replies, strict=True)
        if request.metadata.message_type == "train"
        for task in [wire.unpack_task(request.content)]
    ]
    on_time = [update for number, update in updates if number == 1][:5]
    name = "head.bias" if "head.bias" in first else next(iter(first))
    mean = sum(update.state[name].astype(np.float64) * update.samples for update in on_time)
    np.testing.assert_allclose(first[name], mean / sum(update.samples for update in on_time), atol=1e-6)
    terms = [(update, update.samples) for number, update in updates if number == 2]
    if late == "next":
        slow = [update for number, update in updates if number == 1][5]
        terms.append((slow, discounted(slow.samples, 1)))
    mean = sum(update.state[name].astype(np.float64) * weight for update, weight in terms)
    np.testing.assert_allclose(second[name], mean / sum(weight for _, weight in terms), atol=1e-6)


def test_a_late_update_that_is_no_update_is_named(small_config: MakeConfig) -> None:
    def spoil(index: int, request: Message, reply: Message) -> Message:
        if index == 5 and request.metadata.message_type == "train":
            update = wire.unpack_update(reply.content, declared={}, network=Network({}, 0), limit_mb=100)
            wrong = {name: np.full_like(array, np.nan) for name, array in update.state.items()}
            reply.content.update(wire.pack_update(wire.Update(wrong, update.samples, update.loss, update.seconds)))
        return reply

    grid = SlowSite(6, slow=1)
    grid._fault = spoil
    record, _ = run(small_config(method="fedavg", rounds=2, round__enough=0.8, round__late="next"), grid)
    assert [(event.round_number, event.site) for event in record.of(SiteLeftOut) if event.stage == "train"] == [
        (2, "005")
    ]
    assert all(np.isfinite(array).all() for array in record.of(RoundTrained)[-1].models[0].values())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"round.late": "next"}, "goes with round.enough below 1"),
        ({"round.enough": 0.8, "round.late": "next", "method": "scaffold"}, "set it to 'drop'"),
        ({"round.enough": 0.8, "round.late": "next", "method": "ifca", "cluster.k": 2}, "set it to 'drop'"),
        ({"round.enough": 0.8, "round.late": "next", "method": "cfl"}, "compares updates"),
        (
            {"round.enough": 0.8, "round.late": "next", "method": "fedavg", "aggregate.rule": "median"},
            "all count alike",
        ),
        ({"round.enough": 0.8, "round.late": "next", "method": "fedavg", "aggregate.rule": "secure"}, "hidden"),
        ({"simulate.clock": 3, "method": "dc-cfl", "data.input": "embedding", "train.model": "mlp"}, "in rounds"),
    ],
)
def test_what_does_not_go_together_is_said(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settle(parse(values))


def test_a_simulation_needs_a_clock_to_tell_who_is_late() -> None:
    with pytest.raises(SettingsError, match=r"set simulate\.clock"):
        prepare(Config.model_validate({"round": {"enough": 0.8}}))
