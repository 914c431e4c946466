"""FlexCFL: the spec's vector, the named defects of the published code, shifts, newcomers, resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from client.methods.flexcfl import label_shift
from common import wire
from common.config import SettingsError, parse
from common.methods.flexcfl import COLD_START, LABELS, SHIFT, START
from common.state import Extras
from server.app import conduct
from server.history.events import GroupsFormed, RoundFinished, RoundTrained, SiteLeftOut, SitePlaced, SitesMoved
from server.methods import settle
from server.methods.flexcfl import GroupColdStart
from server.methods.training import Contribution
from tests.support.loopback import LoopbackGrid
from tests.support.resuming import check_resumed
from tests.support.rules import Sites, carry_out, config_of
from tests.support.runs import MakeConfig, Record, failed, run

NAME = "head.weight"
J = {"1": (2, 0, 0), "2": (1, 0.2, 0), "3": (0, 1, 0), "4": (0, 3, 0.3)}


def federation(changes: Mapping[str, Sequence[float]], sites: str = "1234") -> Sites:
    """Sites whose cold start leads there; who is not in `changes` is silent."""
    start = {NAME: np.full(3, 5.0, np.float32)}

    def answer(question: str, extras: Extras, site: str) -> Extras | None:
        assert question == COLD_START
        assert extras[START] is start, "always from the common start"
        if site not in changes:
            return None
        model = {NAME: start[NAME] + np.array(changes[site], np.float32)}
        return {COLD_START: model, LABELS: {"counts": np.array([7, 3])}}

    return Sites(dict.fromkeys(sites, 10), start, answer)


def rule(sites: Sites, k: int = 2, **settings: object) -> GroupColdStart:
    return GroupColdStart(config_of("flexcfl", cluster__k=k, **settings), sites)


def test_vector_j() -> None:
    one = rule(federation(J | {"5": (0.5, 0.4, 0.1)}))
    opening = one.open()
    assert opening.groups == {"1": 0, "2": 0, "3": 1, "4": 1}
    np.testing.assert_allclose(opening.models[0][NAME], [6.5, 5.1, 5.0], rtol=1e-6)
    np.testing.assert_allclose(opening.models[1][NAME], [5.0, 7.0, 5.15], rtol=1e-6)
    firsts = one.state()["firsts"]
    np.testing.assert_allclose(firsts["0"], [1.5, 0.1, 0], atol=1e-6)
    np.testing.assert_allclose(firsts["1"], [0, 2, 0.15], atol=1e-6)
    placed = one.place("5", 3)
    assert one.federation.few == [False, True]  # type: ignore[attr-defined]
    assert placed is not None
    assert (placed.group, placed.confidence) == (0, pytest.approx(1 - 0.094568 / 0.186487, abs=1e-4))


def test_with_one_group_it_starts_from_the_mean_of_the_pre_trained_models() -> None:
    opening = rule(federation(J), k=1).open()
    np.testing.assert_allclose(opening.models[0][NAME], [5.75, 6.05, 5.075], rtol=1e-6)
    assert set(opening.groups.values()) == {0}


def test_more_groups_than_different_updates_are_not_made() -> None:
    """In the published code an empty cluster is a group without a first update, and a crash."""
    one = rule(federation(dict.fromkeys("1234", (1, 0, 0)) | {"4": (0, 1, 0)}), k=3)
    opening = one.open()
    assert set(opening.models) == {0, 1}
    assert opening.groups == {"1": 0, "2": 0, "3": 0, "4": 1}


def test_of_many_sites_a_sample_makes_the_groups_and_the_others_are_placed() -> None:
    rng = np.random.default_rng(0)
    names = [f"{number:03d}" for number in range(50)]
    changes = {name: np.eye(3)[place % 2] + rng.normal(0, 0.05, 3) for place, name in enumerate(names)}
    sites = federation(changes)
    sites.declared = dict.fromkeys(names, 10)
    opening = rule(sites).open()
    assert [len(asked) for asked in sites.asked] == [40, 10]
    assert sites.few == [False, False]
    assert sorted(opening.groups) == names
    assert len({(place % 2, opening.groups[name]) for place, name in enumerate(names)}) == 2


def test_a_mean_counts_every_member_and_rounds_counters() -> None:
    """In the published "avg" only the first update counts."""
    models = [{"w": np.full(1, value, np.float32), "n": np.array(count)} for value, count in ((1.0, 3), (4.0, 5))]
    one = rule(federation({}))
    one._start = models[0]
    mean = one._mean([*models, models[1]])
    assert (mean["w"][0], mean["n"]) == (3.0, 4)


@pytest.mark.parametrize("value", [1e30, np.nan, np.inf])
def test_a_model_that_blew_up_is_left_out(value: float) -> None:
    """Finite is not enough: one such model would be its group's start."""
    opening = rule(federation(J | {"1": (value, 0, 0)})).open()
    assert sorted(opening.groups) == ["2", "3", "4"]
    assert all(np.abs(model[NAME]).max() < 10 for model in opening.models.values())


def test_a_start_is_made_by_the_rule_of_the_run() -> None:
    changes = {"1": (1, 0, 0), "2": (1.5, 0, 0), "3": (1000, 0, 0), "4": (1.25, 0, 0), "5": (2, 0, 0)}
    opening = rule(federation(changes, "12345"), k=1, aggregate__rule="median").open()
    np.testing.assert_allclose(opening.models[0][NAME], [6.5, 5, 5])


def test_too_many_answers_are_refused_before_anybody_is_asked() -> None:
    sites = federation({})
    sites.declared = {f"{number:05d}": 1 for number in range(2**14)}
    sites.start = {NAME: np.zeros(2**16, np.float32)}
    with pytest.raises(SettingsError, match=r"'flexcfl' would hold 8\.0 GiB of answers at once"):
        rule(sites).open()
    assert not sites.asked


def contribution(site: str, shifted: int, group: int = 0) -> Contribution:
    model = {NAME: np.zeros(3, np.float32)}
    return Contribution(2, site, group, 10, model, model, {SHIFT: {"shifted": np.array(shifted)}})


def test_who_has_shifted_is_placed_anew_and_is_in_exactly_one_group() -> None:
    """In the published code it stays in its old group's list, too, and trains in both."""
    changes: dict[str, Sequence[float]] = dict(J)
    one = rule(federation(changes))
    home = dict(one.open().groups)
    one.observe(contribution("2", 0))
    assert carry_out(one, 1, home) == home
    changes["1"] = (0.1, 3, 0)
    one.observe(contribution("1", 1))
    again = rule(federation(changes))
    again.restore(one.state())
    again.federation = one.federation
    assert carry_out(again, 2, home) == home | {"1": 1}
    assert carry_out(again, 3, home) == home, "and only once"


def test_a_silent_one_is_asked_until_it_answers() -> None:
    changes: dict[str, Sequence[float]] = {site: J[site] for site in "123"}
    one = rule(federation(changes))
    home = {"4": 0} | one.open().groups
    assert carry_out(one, 1, home) == home
    changes["4"] = J["4"]
    assert carry_out(one, 2, home) == home | {"4": 1}
    assert one.federation.few == [False, True, True]  # type: ignore[attr-defined]


def test_nobody_at_all_trains_the_common_start() -> None:
    opening = rule(federation({})).open()
    assert (set(opening.models), opening.groups) == ({0}, {})


def test_which_classes_counts() -> None:
    """SciPy's Wasserstein distance of the count vectors is blind to which class: {0, 1} → {2, 3} gives 0."""
    assert label_shift(np.array([250, 250, 0, 0]), np.array([0, 0, 250, 250])) == 1
    assert label_shift(np.array([50, 50]), np.array([59, 41])) == pytest.approx(0.09)
    assert label_shift(np.array([0, 0]), np.array([1, 1])) == 0


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(1, 5))
def test_more_of_the_same_is_no_shift(counts: list[int], times: int) -> None:
    assert label_shift(np.array(counts), np.array(counts) * times) == pytest.approx(0)


SMALL = {"method": "flexcfl", "cluster__k": 2, "flexcfl__steps": 4, "sites": 4}


def test_it_groups_before_training(small_config: MakeConfig) -> None:
    record, grid = run(small_config(**SMALL, train__fraction=0.5))
    assert not record.of(SiteLeftOut)
    assert set(record.of(GroupsFormed)[0].labels) == {0, 1}
    assert not record.of(SitesMoved)
    assert sum(message.metadata.message_type == "query.method" for message in grid.pushed) == 4
    assert np.isfinite(record.of(RoundFinished)[-1].overall.loss)


def test_a_drift_of_labels_is_told_and_answered_and_the_present_model_is_tested(small_config: MakeConfig) -> None:
    drift = [{"kind": "swap", "at": 2, "sites": 0.5}]
    settings = SMALL | {"partition__scheme": "disjoint", "partition__groups": 2, "data__watch": False}
    record, grid = run(small_config(**settings, rounds=3, drift=drift))
    asked = [m for m in grid.pushed if m.metadata.message_type == "query.method"]
    again = asked[4:]
    assert again
    assert {wire.unpack_task(message.content).round_number for message in again} == {2}
    moved = {site for event in record.of(SitesMoved) for site in event.sites}
    drifted = {f"{grid.connected[message.metadata.dst_node_id]:03d}" for message in again}
    assert moved <= drifted
    assert moved
    labels = record.of(RoundTrained)[-1].labels
    assert sorted(labels) == ["000", "001", "002", "003"]


def test_a_lost_answer_is_asked_for_again(small_config: MakeConfig) -> None:
    def lose(index: int, request: Message, reply: Message) -> Message:
        early = request.metadata.message_type == "query.method" and not wire.unpack_task(request.content).round_number
        return failed(request, reply) if early and index == 0 else reply

    record, grid = run(small_config(**SMALL), fault=lose)
    assert [event.site for event in record.of(SiteLeftOut)] == ["000"]
    asked = [m for m in grid.pushed if m.metadata.message_type == "query.method" and m.metadata.dst_node_id == 100]
    assert len(asked) == 2


def test_who_never_answers_is_not_asked_for_ever(small_config: MakeConfig) -> None:
    """Everybody else waits meanwhile."""

    def lose(index: int, request: Message, reply: Message) -> Message:
        asked = request.metadata.message_type == "query.method" and index == 0
        return failed(request, reply) if asked else reply

    _, grid = run(small_config(**SMALL, rounds=5), fault=lose)
    asked = [m for m in grid.pushed if m.metadata.message_type == "query.method" and m.metadata.dst_node_id == 100]
    assert [wire.unpack_task(message.content).round_number for message in asked] == [0, 1, 2]


def test_a_newcomer_is_placed_by_its_cold_start(small_config: MakeConfig) -> None:
    config = small_config(**SMALL, round__start_timeout=0.3)
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
    assert (placed.site, placed.group) == ("003", record.of(RoundTrained)[-1].labels["003"])


def test_other_rules_and_migration_are_refused() -> None:
    with pytest.raises(SettingsError, match="a rule of its own"):
        settle(parse({"method": "flexcfl", "cluster.k": 2, "migration.rule": "guarded"}))
    with pytest.raises(SettingsError, match="cannot have two"):
        settle(parse({"method": "flexcfl", "cluster.k": 2, "train.rule": "ditto"}))


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=3, rounds=3, train__fraction=0.5, **SMALL)
