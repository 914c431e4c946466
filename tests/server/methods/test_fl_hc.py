"""FL+HC: the spec's vector, everybody in exactly one group, silent and late sites, resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from common.clock import TOLERANCE
from common.config import SettingsError
from common.methods.fl_hc import DIRECTION, START
from common.state import Extras
from server.app import conduct
from server.history.events import GroupKept, RoundFinished, RoundTrained, SitePlaced, SitesMoved
from server.methods.fl_hc import HierarchicalOnce
from tests.support.loopback import LoopbackGrid
from tests.support.resuming import check_resumed
from tests.support.rules import Sites, carry_out, config_of
from tests.support.runs import MakeConfig, Record, failed, run

I = {"1": (1, 0, 0), "2": (0.8, 0.1, 0), "3": (0, 1, 1), "4": (0, 0.9, 1.2)}  # noqa: E741
START_MODEL = {"head.weight": np.zeros(3, np.float32)}


def sites_that(changes: Mapping[str, Sequence[float]]) -> Sites:
    """Sites that change the model so; who is not in `changes` is silent."""

    def answer(question: str, extras: Extras, site: str) -> Extras | None:
        assert question == DIRECTION
        assert extras[START] is START_MODEL
        found = changes.get(site)
        return None if found is None else {DIRECTION: {"head.weight": np.array(found, np.float32)}}

    return Sites(answer=answer, models={0: START_MODEL})


def rule(sites: Sites, **settings: object) -> HierarchicalOnce:
    config = config_of("fl-hc", fl_hc__rounds=1, rounds=5, **settings)
    return HierarchicalOnce(config, sites)


def review(one: HierarchicalOnce, round_number: int, groups: dict[int, list[str]]) -> dict[int, list[str]]:
    """Carry out what the rule says, and return the groups."""
    after: dict[int, list[str]] = {}
    home = {site: group for group, sites in groups.items() for site in sites}
    for site, group in sorted(carry_out(one, round_number, home).items()):
        after.setdefault(group, []).append(site)
    return after


def test_vector_i() -> None:
    apart = HierarchicalOnce._distance(rule(sites_that(I)), [np.array(change, np.float32) for change in I.values()])
    assert (apart[0, 1], apart[2, 3], apart.max()) == pytest.approx((0.3, 0.3, 3.1))
    assert review(rule(sites_that(I), cluster__threshold=1.0), 1, {0: list("1234")}) == {0: ["1", "2"], 1: ["3", "4"]}
    assert review(rule(sites_that(I), cluster__threshold=3.2), 1, {0: list("1234")}) == {0: list("1234")}
    assert review(rule(sites_that(I), cluster__k=2), 1, {0: list("1234")}) == {0: ["1", "2"], 1: ["3", "4"]}
    assert len(review(rule(sites_that(I), cluster__threshold=1e-6), 1, {0: list("1234")})) == 4
    assert review(rule(sites_that(I)), 1, {0: list("1234")}) == {0: ["1", "2"], 1: ["3", "4"]}


def test_a_silent_site_is_asked_again_and_joins_the_nearest_mean_and_a_restart_changes_nothing() -> None:
    """inflorescence gives those who were not drawn group −1, and the concatenation of all models."""
    changes = {site: I[site] for site in "123"}
    sites = sites_that(changes)
    one = rule(sites, cluster__threshold=1.0)
    groups = review(one, 1, {0: list("1234")})
    assert groups == {0: ["1", "2", "4"], 1: ["3"]}
    assert review(one, 2, groups) == groups
    again = rule(sites, cluster__threshold=1.0)
    again.restore(one.state())
    changes["4"] = I["4"]
    groups = review(again, 3, groups)
    assert groups == {0: ["1", "2"], 1: ["3", "4"]}
    assert review(again, 4, groups) == groups
    assert sites.asked == [list("1234"), ["4"], ["4"]]
    assert sites.few == [False, True, True]


def test_a_newcomer_joins_the_nearest_mean() -> None:
    sites = sites_that(I | {"5": (0, 1, 0.9)})
    one = rule(sites, cluster__threshold=1.0)
    assert one.place("5", 1) is None, "before the sites are grouped there is one group"
    review(one, 1, {0: list("1234")})
    placed = one.place("5", 2)
    assert sites.few == [False, True]
    assert placed is not None
    assert placed.group == 1
    assert 0.8 < placed.confidence <= 1


def test_if_nobody_answers_everybody_is_asked_after_the_next_round() -> None:
    changes: dict[str, Sequence[float]] = {}
    sites = sites_that(changes)
    one = rule(sites, cluster__threshold=1.0)
    assert review(one, 1, {0: list("1234")}) == {0: list("1234")}
    changes |= I
    assert len(review(one, 2, {0: list("1234")})) == 2


def test_too_many_answers_are_refused_before_the_run() -> None:
    sites = Sites({f"{number:05d}": 1 for number in range(2**14)}, {"head.weight": np.zeros(2**16, np.float32)})
    with pytest.raises(SettingsError, match=r"'fl-hc' would hold 8\.0 GiB of answers at once"):
        rule(sites).open()
    late = HierarchicalOnce(config_of("fl-hc", fl_hc__rounds=5, rounds=5), sites)
    assert late.open() is None, "nobody is ever asked"


def test_one_absent_site_takes_no_time_from_the_others(small_config: MakeConfig) -> None:
    config = small_config(method="fl-hc", rounds=2, fl_hc__rounds=1, cluster__k=2, sites=4)

    def leave(index: int, request: Message, reply: Message) -> Message:
        if index == 3 and request.metadata.message_type == "train" and 103 in grid.connected:
            grid.disconnect(103)
        return reply

    grid = LoopbackGrid(4, fault=leave)
    conduct(grid, config, [Record()])
    asked = [message for message in grid.pushed if message.metadata.message_type == "query.method"]
    assert [message.metadata.dst_node_id for message in asked] == [100, 101, 102]
    assert {message.metadata.ttl for message in asked} == {config.round.deadline + TOLERANCE}


def figures(record: Record) -> list[float]:
    return [event.overall.loss for event in record.of(RoundFinished)]


def test_with_one_group_or_no_time_to_group_it_is_fedavg_bit_for_bit(small_config: MakeConfig) -> None:
    fedavg = figures(run(small_config(method="fedavg", rounds=3))[0])
    assert figures(run(small_config(method="fl-hc", rounds=3))[0]) == fedavg
    whole, grid = run(small_config(method="fl-hc", rounds=3, fl_hc__rounds=1, cluster__threshold=1e9))
    assert figures(whole) == fedavg
    assert sum(message.metadata.message_type == "query.method" for message in grid.pushed) == 6


def test_alone_it_is_local_from_the_common_model(small_config: MakeConfig) -> None:
    config = small_config(method="fl-hc", rounds=3, fl_hc__rounds=1, cluster__threshold=1e-9, train__fraction=0.5)
    record, _ = run(config)
    first, second = record.of(RoundTrained)[:2]
    assert sorted(first.labels.values()) == [0, 1, 2, 3, 4, 5]
    for model in first.models.values():
        np.testing.assert_array_equal(model["head.weight"], first.models[0]["head.weight"])
    assert len({model["head.weight"].tobytes() for model in second.models.values()}) == 6


def test_everybody_is_asked_whoever_is_drawn_and_a_group_without_a_reply_keeps_its_model(
    small_config: MakeConfig,
) -> None:
    config = small_config(method="fl-hc", rounds=3, fl_hc__rounds=1, cluster__k=2, train__fraction=0.2)

    def lose(index: int, request: Message, reply: Message) -> Message:
        lost = request.metadata.message_type == "train" and "fl" in record.group_of(index)
        return failed(request, reply) if lost else reply

    class Groups(Record):
        def group_of(self, index: int) -> str:
            moved = {site for event in self.of(SitesMoved) for site in event.sites}
            return "fl" if f"{index:03d}" in moved else ""

    record = Groups()
    grid = LoopbackGrid(6, fault=lose)
    conduct(grid, config, [record])
    asked = [message for message in grid.pushed if message.metadata.message_type == "query.method"]
    assert len(asked) == 6
    trained = record.of(RoundTrained)
    assert set(trained[-1].labels.values()) == {0, 1}
    assert sorted(trained[-1].labels) == [f"{index:03d}" for index in range(6)]
    np.testing.assert_array_equal(trained[0].models[1]["head.weight"], trained[-1].models[1]["head.weight"])
    assert not np.array_equal(trained[0].models[0]["head.weight"], trained[-1].models[0]["head.weight"])
    assert {event.group for event in record.of(GroupKept)} == {1}


def test_a_late_site_is_placed_in_a_run(small_config: MakeConfig) -> None:
    config = small_config(method="fl-hc", rounds=3, fl_hc__rounds=1, cluster__k=2, round__start_timeout=0.3, sites=4)
    grid = LoopbackGrid(4)
    grid.disconnect(103)

    class Late(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(103, 3)

    record = Late()
    conduct(grid, config, [record])
    (placed,) = record.of(SitePlaced)
    assert placed.site == "003"
    assert placed.group == record.of(RoundTrained)[-1].labels["003"]


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = {"method": "fl-hc", "fl_hc__rounds": 2, "cluster__k": 2, "train__fraction": 0.5, "sites": 4}
    check_resumed(small_config, tmp_path, stop=4, rounds=4, **settings)
