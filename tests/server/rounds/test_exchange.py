"""A round is one exchange: who is sent what, which round its figures belong to, and how it goes on after a restart."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

import client.answers.round
from client.data import load_site
from client.identity import Identity
from client.request import Request
from client.training import TEST_BATCH, default_device, evaluate
from common import wire
from common.config import Config
from common.metrics import Metrics, summarise
from common.models import set_state
from common.networks import build_for
from server.app import conduct
from server.history.event_log import read_events
from server.history.events import (
    Event,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    StageStarted,
)
from server.history.run_directory import open_run
from server.listeners import run_listeners
from server.roster import Roster
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, run

SITES = [f"{index:03d}" for index in range(6)]


def sent(grid: LoopbackGrid, kind: str) -> list[wire.Task]:
    """The tasks of all messages of a type."""
    return [wire.unpack_task(m.content) for m in grid.pushed if m.metadata.message_type == kind]


def asked_in(grid: LoopbackGrid, round_number: int) -> list[tuple[int, str, int]]:
    """Node, type and tested round of every message of a round."""
    asked = []
    for message in grid.pushed:
        kind = message.metadata.message_type
        if kind in ("train", "evaluate") and message.content["task"]["round"] == round_number:
            asked.append((message.metadata.dst_node_id, kind, int(message.content["task"]["tests"])))
    return asked


def figures(event: RoundFinished) -> dict[str, object]:
    """All that is told of a round, but the models."""
    counts = {site: cells.tolist() for site, cells in event.confusions.items()}
    scores = {group: histograms.tolist() for group, histograms in event.scores.items()}
    return {**vars(event), "models": None, "confusions": counts, "scores": scores}


def same_models(one: RoundFinished, other: RoundFinished) -> bool:
    assert one.models.keys() == other.models.keys()
    return all(
        np.array_equal(array, other.models[group][name])
        for group, model in one.models.items()
        for name, array in model.items()
    )


# --- who is sent what ---------------------------------------------------------------------------------------------


def test_everybody_gets_one_message_a_round_and_one_more_at_the_end(small_config: MakeConfig) -> None:
    """Two exchanges a round would take twice as many: 6 · 3 to train and 6 · 3 to test."""
    record, grid = run(small_config(method="fedavg", rounds=3))
    kinds = Counter(message.metadata.message_type for message in grid.pushed)
    assert kinds == {"query.hello": 6, "train": 6 * 3, "evaluate": 6}
    assert [(task.round_number, task.tests) for task in sent(grid, "train")] == 6 * [(1, 0)] + 6 * [(2, 1)] + 6 * [
        (3, 2)
    ]
    assert {(task.round_number, task.tests) for task in sent(grid, "evaluate")} == {(3, 3)}
    assert [set(event.sites) for event in record.of(RoundFinished)] == 3 * [set(SITES)]
    stages = [(event.stage, event.round_number, event.sites) for event in record.of(StageStarted)]
    assert stages == [("enrol", 0, 6), ("train", 1, 6), ("train", 2, 6), ("train", 3, 6), ("evaluate", 3, 6)]


def test_a_round_is_finished_in_the_exchange_of_the_next_one(small_config: MakeConfig) -> None:
    record, _ = run(small_config(method="fedavg", rounds=2))
    story = [event for event in record.events if isinstance(event, StageStarted | RoundTrained | RoundFinished)]
    assert [type(event).__name__ + f" {event.round_number}" for event in story[1:]] == [
        "StageStarted 1", "RoundTrained 1", "StageStarted 2", "RoundFinished 1", "RoundTrained 2", "StageStarted 2",
        "RoundFinished 2",
    ]  # fmt: skip


def test_who_does_not_train_only_tests_and_nobody_is_asked_twice(small_config: MakeConfig) -> None:
    record, grid = run(small_config(method="fedavg", rounds=4, train__fraction=0.5))
    first = asked_in(grid, 1)
    assert [(kind, tests) for _, kind, tests in first] == 3 * [("train", 0)]
    for round_number in (2, 3, 4):
        # The test of the last round's own models is a stage of its own.
        asked = [one for one in asked_in(grid, round_number) if one[2] != round_number]
        assert sorted(node for node, _, _ in asked) == list(range(100, 106))
        assert Counter(kind for _, kind, _ in asked) == {"train": 3, "evaluate": 3}
        assert {tests for _, _, tests in asked} == {round_number - 1}
        drawn = {f"{node - 100:03d}" for node, kind, _ in asked if kind == "train"}
        replies = [event for event in record.of(ReplyAccepted) if event.stage != "enrol"]
        assert {e.site for e in replies if (e.stage, e.round_number) == ("train", round_number)} == drawn
        # A test is told of the round whose models it tests.
        tested_only = {e.site for e in replies if (e.stage, e.round_number) == ("evaluate", round_number - 1)}
        assert tested_only == set(SITES) - drawn
    assert [set(event.sites) for event in record.of(RoundFinished)] == 4 * [set(SITES)]
    # A model that is only tested is sent, but none comes back.
    trained, tested = (
        [event for event in record.of(ReplyAccepted) if event.stage == stage] for stage in ("train", "evaluate")
    )
    assert max(event.bytes_received for event in tested) < min(event.bytes_received for event in trained)
    assert len(trained) == 4 * 3
    assert len(tested) == 3 * 3 + 6


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rounds_may_be_tested_more_rarely_and_their_figures_are_the_same(
    small_config: MakeConfig, fraction: float
) -> None:
    settings = {"rounds": 7, "train__fraction": fraction, "train__model": "mlp", "cluster__k": 2}
    always, often = run(small_config(**settings))
    rarely, seldom = run(small_config(**settings, test__every=3))
    finished = {event.round_number: event for event in always.of(RoundFinished)}
    assert list(finished) == [1, 2, 3, 4, 5, 6, 7]
    assert [event.round_number for event in rarely.of(RoundFinished)] == [3, 6, 7]
    for event in rarely.of(RoundFinished):
        assert figures(event) == figures(finished[event.round_number])
        assert same_models(event, finished[event.round_number])
    losses = [[(event.train_loss, event.labels) for event in run.of(RoundTrained)] for run in (rarely, always)]
    assert losses[0] == losses[1]
    assert [event.round_number for event in rarely.of(RoundTrained)] == [1, 2, 3, 4, 5, 6, 7]
    assert sorted({task.tests for task in sent(seldom, "train")}) == [0, 3, 6]
    drawn = len(sent(seldom, "train")) // 7
    assert len(sent(seldom, "train")) == len(sent(often, "train")) == 7 * drawn
    # Only those who do not train are spared a message.
    assert len(sent(often, "evaluate")) == 6 * (6 - drawn) + 6
    assert len(sent(seldom, "evaluate")) == 2 * (6 - drawn) + 6


# --- which round the figures belong to ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_who_comes_in_the_next_round_is_not_part_of_this_ones_figures(small_config: MakeConfig, method: str) -> None:
    grid = LoopbackGrid(6)
    grid.disconnect(105)

    class LetIn:
        def hear(self, event: Event) -> None:
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(105, 5)

    record = Record()
    conduct(grid, small_config(method=method, rounds=3, sites=5), [record, LetIn()])
    without, _ = run(small_config(method=method, rounds=1, sites=5), grid=lacking(105))
    first, second, _ = record.of(RoundFinished)
    assert set(first.labels) == set(first.sites) == set(SITES[:5])
    assert figures(first) == figures(without.of(RoundFinished)[0])
    assert same_models(first, without.of(RoundFinished)[0])
    assert set(second.labels) == set(second.sites) == set(SITES)
    # It came before: in the exchange in which the first round is tested.
    order = [event for event in record.events if isinstance(event, SitePlaced | RoundFinished)]
    assert [type(event) for event in order[:2]] == [SitePlaced, RoundFinished]
    assert [tests for node, _, tests in asked_in(grid, 2) if node == 105] == [0]
    assert {tests for node, _, tests in asked_in(grid, 2) if node != 105} == {1}


def lacking(node: int) -> LoopbackGrid:
    grid = LoopbackGrid(6)
    grid.disconnect(node)
    return grid


def test_a_newcomer_that_is_not_drawn_is_asked_for_nothing(small_config: MakeConfig) -> None:
    grid = lacking(105)

    class LetIn:
        def hear(self, event: Event) -> None:
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(105, 5)

    config = small_config(method="fedavg", rounds=2, sites=5, train__fraction=0.01)
    conduct(grid, config, [record := Record(), LetIn()])
    drawn = [node for node, kind, tests in asked_in(grid, 2) if kind == "train"]
    assert drawn != [105], "choose another seed: the newcomer should not be drawn"
    assert 105 not in {node for node, _, tests in asked_in(grid, 2) if tests < 2}
    assert [len(event.sites) for event in record.of(RoundFinished)] == [5, 6]


def expected(config: Config, event: RoundFinished, site: str, round_number: int) -> Metrics:
    """How a site's group does on the site's test split as it is in a round."""
    identity = Identity(site, None, (int(site), config.sites), None)
    data = load_site(identity, config.for_site(), round_number, config.rounds)
    network = build_for(config.for_site(), seed=None)
    set_state(network, event.models[event.labels[site]])
    statistics = evaluate(
        network,
        data.test_inputs(),
        data.test_labels,
        classes=len(data.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )
    return summarise(statistics)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_round_is_tested_on_the_data_it_had(small_config: MakeConfig, fraction: float) -> None:
    """Two sites exchange their data before round 3, in whose exchange round 2 is tested."""
    config = small_config(
        method="local",
        rounds=4,
        train__model="mlp",
        train__fraction=fraction,
        partition__scheme="disjoint",
        partition__groups=2,
        drift='[{"kind": "swap", "at": 3, "sites": ["000", "001"]}]',
    )
    record, _ = run(config)
    rounds = record.of(RoundFinished)
    assert [event.round_number for event in rounds] == [1, 2, 3, 4]
    for event in rounds:
        for site in SITES:
            assert event.sites[site] == expected(config, event, site, event.round_number), (event.round_number, site)
    # Else nothing of this would prove anything.
    assert all(rounds[1].sites[site] != expected(config, rounds[1], site, 3) for site in ("000", "001"))


# --- one half fails -----------------------------------------------------------------------------------------------


def left_out(record: Record) -> list[tuple[str, int, str, str]]:
    return [(event.stage, event.round_number, event.site, event.reason) for event in record.of(SiteLeftOut)]


def failing(name: str, site: str, round_number: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Let one step of a site fail in the exchange of a round."""
    work = getattr(client.answers.round, name)

    def fail(request: Request) -> object:
        if (request.identity.name, request.task.round_number) == (site, round_number):
            raise OSError("its data are gone")
        return work(request)

    return lambda monkeypatch: monkeypatch.setattr(client.answers.round, name, fail)


def test_a_site_that_cannot_train_is_tested_all_the_same(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(method="fedavg", rounds=3)
    whole, _ = run(config)
    failing("_trained", "001", 2)(monkeypatch)
    record, _ = run(config)
    assert left_out(record) == [("train", 2, "001", "OSError: its data are gone")]
    first, second, _ = record.of(RoundFinished)
    assert figures(first) == figures(whole.of(RoundFinished)[0])
    assert not same_models(second, whole.of(RoundFinished)[1])
    assert set(second.sites) == set(SITES)
    accepted = [event.site for event in record.of(ReplyAccepted) if (event.stage, event.round_number) == ("train", 2)]
    assert sorted(accepted) == [site for site in SITES if site != "001"]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_site_that_cannot_test_trains_all_the_same(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    config = small_config(method="fedavg", rounds=3, train__fraction=fraction)
    whole, _ = run(config)
    for site in SITES:
        with monkeypatch.context() as patch:
            broken_data(patch, site, tested_round=1)
            record, _ = run(config)
        # Named for the round that lacks its figures, whether it trains beside that or not.
        assert left_out(record) == [("evaluate", 1, site, "OSError: its data are gone")]
        first, *others = record.of(RoundFinished)
        assert set(first.sites) == set(SITES) - {site}
        for event, undisturbed in zip(others, whole.of(RoundFinished)[1:], strict=True):
            assert figures(event) == figures(undisturbed)
            assert same_models(event, undisturbed)
        if fraction == 1.0:
            break


def broken_data(monkeypatch: pytest.MonkeyPatch, site: str, tested_round: int) -> None:
    """A site's data cannot be read as they were in a round."""
    in_round = Request.in_round

    def broken(self: Request, round_number: int) -> Request:
        if (self.identity.name, round_number) == (site, tested_round):
            raise OSError("its data are gone")
        return in_round(self, round_number)

    monkeypatch.setattr(Request, "in_round", broken)


def test_a_wrong_test_does_not_spoil_the_update_beside_it(small_config: MakeConfig) -> None:
    def inflated(index: int, request: Message, reply: Message) -> Message:
        if index == 1 and request.content["task"]["round"] == 2 and request.content["task"]["tests"] == 1:
            arrays = wire.unpack_arrays(reply.content["statistics"])
            reply.content["statistics"] = wire.pack_arrays({name: array * 1000 for name, array in arrays.items()})
        return reply

    config = small_config(method="fedavg", rounds=2)
    whole, _ = run(config)
    record, _ = run(config, fault=inflated)
    ((stage, round_number, site, reason),) = left_out(record)
    assert (stage, round_number, site) == ("evaluate", 1, "001")
    assert "test samples after declaring" in reason
    first, second = record.of(RoundFinished)
    assert "001" not in first.sites
    assert same_models(second, whole.of(RoundFinished)[1])


def test_a_wrong_update_does_not_spoil_the_test_beside_it(small_config: MakeConfig) -> None:
    def truncated(index: int, request: Message, reply: Message) -> Message:
        if index == 1 and request.metadata.message_type == "train" and request.content["task"]["round"] == 2:
            reply.content["training"]["samples"] = 10**9
        return reply

    config = small_config(method="fedavg", rounds=2)
    whole, _ = run(config)
    record, _ = run(config, fault=truncated)
    assert [one[:3] for one in left_out(record)] == [("train", 2, "001")]
    assert figures(record.of(RoundFinished)[0]) == figures(whole.of(RoundFinished)[0])


# --- after a restart ----------------------------------------------------------------------------------------------


class Stop(Exception):
    """What a run dies of."""


def dies_at(kind: str, round_number: int, message: int) -> type[LoopbackGrid]:
    """A Grid that fails at the n-th message that trains in a round or tests the last one's models."""

    class Dying(LoopbackGrid):
        left = message

        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            for one in (messages := list(messages)):
                task = wire.unpack_task(one.content)
                of_round = task.round_number if kind == "train" else task.tests
                if one.metadata.message_type == kind and of_round == round_number:
                    self.left -= 1
                    if not self.left:
                        raise Stop
            return super().push_messages(messages)

    return Dying


def carry_out(config: Config, grid: type[LoopbackGrid] = LoopbackGrid) -> Record:
    directory = open_run(config)
    conduct(grid(config.sites), config, [*run_listeners(directory), record := Record()], directory=directory)
    return record


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("kind", "round_number"),
    [("train", 1), ("train", 2), ("train", 3), ("train", 4), ("train", 5), ("evaluate", 5)],
)
def test_resumed_after_any_round_the_figures_are_the_same(
    small_config: MakeConfig, tmp_path: Path, kind: str, round_number: int, every: int
) -> None:
    settings = {"rounds": 5, "train__model": "mlp", "train__fraction": 0.5, "cluster__k": 2, "test__every": every}
    # One message after the other, so that some have been answered when the run dies.
    settings["round__in_flight"] = 1
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    carry_out(small_config(**settings, out=str(whole)))
    with pytest.raises(Stop):
        carry_out(small_config(**settings, out=str(broken)), dies_at(kind, round_number, message=2))
    record = carry_out(small_config(**settings, out=str(broken), resume="auto"))
    for name in ("metrics.csv", "clusters.json", *(f"models/{path.name}" for path in (whole / "models").iterdir())):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    done = round_number - 1 if kind == "train" else round_number
    if done:
        tested = [r for r in range(1, 6) if r % every == 0 or r == 5]
        assert [event.round_number for event in record.of(RoundFinished)] == [r for r in tested if r >= done]
    with (broken / "metrics.csv").open(newline="") as file:
        rounds = [row["round"] for row in csv.DictReader(file) if row["scope"] == "overall"]
    assert len(rounds) == len(set(rounds))
    told, undisturbed = (told_of(path) for path in (broken, whole))
    assert told == undisturbed


def told_of(path: Path) -> Counter[object]:
    """What the log tells of stages and sites, as often as it does; the sites of a resumed run are asked for again."""
    events = read_events(path).events
    return Counter(
        replace(event, seconds=0.0) if isinstance(event, ReplyAccepted) else event
        for event in events
        if isinstance(event, ReplyAccepted | SiteLeftOut | StageStarted) and event.stage != "enrol"
    )


def test_nobody_new_is_asked_when_only_the_last_test_is_missing(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(method="fedavg", rounds=2, out=str(tmp_path / "run"))
    with pytest.raises(Stop):
        carry_out(config, dies_at("evaluate", 2, message=1))
    seen: list[str] = []

    class Watching(LoopbackGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            messages = list(messages)
            seen.extend(message.metadata.message_type for message in messages)
            return super().push_messages(messages)

    record = carry_out(small_config(method="fedavg", rounds=2, out=str(tmp_path / "run"), resume="auto"), Watching)
    assert Counter(seen) == {"query.hello": 6, "evaluate": 6}
    assert [event.round_number for event in record.of(RoundFinished)] == [2]
    assert not record.of(SiteEnrolled)


def test_what_sites_may_weigh_is_looked_up_once_a_round_and_only_under_a_cap(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 sites in 2 rounds: not 12 times."""
    looked: list[int] = []
    sizes = Roster.sizes

    def spy(self: Roster, group: int) -> dict[str, int]:
        looked.append(group)
        return sizes(self, group)

    monkeypatch.setattr(Roster, "sizes", spy)
    run(small_config(method="fedavg", rounds=2))
    free = len(looked)
    run(small_config(method="fedavg", rounds=2, aggregate__cap=2.0))
    # Once a round for the capacity. Without a cap once more, before training: does one site outweigh the others?
    assert (free, len(looked) - free) == (1 + 2, 2 + 2)
