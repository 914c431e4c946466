"""Whole runs over a loopback Grid: the real ClientApp, the real strategy, Flower's own loop, injected faults."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from common import wire
from common.config import Config
from common.drift import DriftEvent
from common.state import State
from server.app import conduct, initial_state
from server.asking.grid import StreamingGrid
from server.history.event_log import read_events
from server.history.events import (
    Event,
    GroupKept,
    GroupsFormed,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunStarted,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
)
from server.listeners import run_listeners
from server.listeners.summary import Summary
from server.membership import NoSites
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, altered, failed, made, on, run, run_to_disk, update_in


def altered_update(change: Callable[[wire.Update], wire.Update]) -> Callable[[Message, Message], Message]:
    def apply(request: Message, reply: Message) -> Message:
        return altered(reply, change(update_in(reply)))

    return apply


def with_state(update: wire.Update, change: Callable[[State], State]) -> wire.Update:
    return wire.Update(change(dict(update.state)), update.samples, update.loss, update.seconds)


def test_fmcl_groups_once_and_trains_every_group(small_config: MakeConfig) -> None:
    record, grid = run(small_config())
    (formed,) = record.of(GroupsFormed)
    assert len(formed.sites) == 6
    assert formed.distance.shape == (6, 6)
    queries = [message for message in grid.pushed if message.metadata.message_type == "query.signature"]
    assert len(queries) == 6
    rounds = record.of(RoundFinished)
    assert [event.round_number for event in rounds] == [1, 2]
    assert set(rounds[-1].models) == set(formed.labels)
    assert record.of(RunEnded)[0].outcome == "finished"
    assert not record.of(SiteLeftOut)


def fedcm_config(small_config: MakeConfig, **settings: object) -> Config:
    """Six sites in three groups without a common label."""
    return small_config(method="fedcm", partition__scheme="disjoint", partition__groups=3, **settings)


def label_sets(record: Record) -> dict[str, tuple[int, ...]]:
    """Which classes each site holds."""
    cards = [event.card for event in record.of(SiteEnrolled)]
    return {card.name: tuple(np.flatnonzero(card.class_counts).tolist()) for card in cards}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedcm_finds_the_label_groups_and_trains_them(small_config: MakeConfig, seed: int) -> None:
    record, grid = run(fedcm_config(small_config, rounds=1, seed=seed))
    (formed,) = record.of(GroupsFormed)
    holds = label_sets(record)
    for site, label in zip(formed.sites, formed.labels, strict=True):
        for other, other_label in zip(formed.sites, formed.labels, strict=True):
            assert (label == other_label) == (holds[site] == holds[other])
    np.testing.assert_array_equal(np.diagonal(formed.distance), 0)
    asked = [message.metadata.message_type for message in grid.pushed]
    assert asked == 6 * ["query.path"] + 6 * ["train"] + 6 * ["evaluate"]
    assert set(record.of(RoundFinished)[-1].models) == {0, 1, 2}


def test_every_site_warms_up_from_the_same_model_and_its_bytes_are_counted(small_config: MakeConfig) -> None:
    config = fedcm_config(small_config, rounds=0)
    record, grid = run(config)
    packed = wire.pack_arrays(initial_state(config))
    for query in grid.pushed:
        assert {name: array.data for name, array in query.content["model"].items()} == {
            name: array.data for name, array in packed.items()
        }
    assert {event.bytes_sent for event in record.of(ReplyAccepted)} == {wire.size(grid.pushed[0].content)}


def test_fmcl_asks_without_a_model(small_config: MakeConfig) -> None:
    record, grid = run(small_config(rounds=0))
    assert not any("model" in message.content for message in grid.pushed)
    assert {event.bytes_sent for event in record.of(ReplyAccepted)} == {0}


def test_a_site_with_a_path_of_another_length_is_turned_away(small_config: MakeConfig) -> None:
    def shorten(request: Message, reply: Message) -> Message:
        changes = wire.unpack_arrays(reply.content["path"])["changes"]
        reply.content["path"] = wire.pack_arrays({"changes": changes[:3]})
        return reply

    record, _ = run(fedcm_config(small_config, rounds=0), fault=on("query", 0, shorten))
    reason = record.reasons["enrol", "node 100"]
    assert "3 epochs of 850 head parameters where the other sites have 5 epochs of 850 head parameters" in reason
    assert "fedcm.warm_up" in reason
    assert len(record.of(GroupsFormed)[0].sites) == 5


def test_a_site_that_answers_with_another_fingerprint_is_turned_away(small_config: MakeConfig) -> None:
    def swap(request: Message, reply: Message) -> Message:
        reply.content["signature"] = reply.content.pop("path")
        return reply

    record, _ = run(fedcm_config(small_config, rounds=0), fault=on("query", 1, swap))
    assert "no path but a signature" in record.reasons["enrol", "node 101"]


def test_a_warm_up_that_diverges_is_explained_to_the_server(small_config: MakeConfig) -> None:
    with pytest.raises(NoSites, match=r"warm-up.*lower train\.lr"):
        run(fedcm_config(small_config, train__lr=1e30))


def test_no_two_sites_share_what_they_are_told(small_config: MakeConfig) -> None:
    """One record for all would let whatever is written for one site reach the others."""
    _, grid = run(small_config(rounds=1))
    told = [message.content["task"] for message in grid.pushed if message.metadata.message_type == "train"]
    assert len(told) == 6
    told[0]["round"] = 99
    assert [record["round"] for record in told[1:]] == [1] * 5


def test_training_improves_on_the_first_round(small_config: MakeConfig) -> None:
    record, _ = run(small_config(rounds=6, method="fedavg", partition__scheme="iid", train__momentum=0.9))
    losses = [event.train_loss for event in record.of(RoundFinished)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("method", "groups"), [("fedavg", 1), ("local", 6)])
def test_the_extremes_are_one_group_and_all_alone(small_config: MakeConfig, method: str, groups: int) -> None:
    record, grid = run(small_config(method=method, rounds=1))
    assert len(set(record.of(GroupsFormed)[0].labels)) == groups
    assert {message.metadata.message_type for message in grid.pushed} == {"query.hello", "train", "evaluate"}


def test_fedprox_holds_the_sites_near_the_common_model(small_config: MakeConfig) -> None:
    """Of one round from the same start: the stronger the pull, the shorter the way; without one it is FedAvg."""

    def way(**settings: object) -> float:
        config = small_config(rounds=1, train__epochs=3, **settings)
        record, grid = run(config)
        assert {message.metadata.message_type for message in grid.pushed} == {"query.hello", "train", "evaluate"}
        start, model = initial_state(config), record.of(RoundFinished)[0].models[0]
        return float(np.sqrt(sum(np.square(model[name] - start[name]).sum() for name in model)))

    free, loose, tight = (way(method="fedprox", fedprox__mu=mu) for mu in (0, 0.1, 5))
    assert free == way(method="fedavg")
    assert free > loose > 2 * tight


def test_a_site_that_does_not_know_the_rule_says_so(small_config: MakeConfig) -> None:
    class Newer(LoopbackGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            for message in messages:
                if message.metadata.message_type == "train":
                    message.content["task"]["rule"] = "of-tomorrow"
            return super().push_messages(messages)

    record, _ = run(small_config(method="fedprox", rounds=1), grid=Newer(6))
    assert "knows no rule 'of-tomorrow': update it" in record.reasons["train", "000"]
    (kept,) = record.of(GroupKept)
    assert kept.replies == 0


def test_fixed_k_one_equals_fedavg_and_k_n_equals_local(small_config: MakeConfig, tmp_path: Path) -> None:
    def metrics(name: str, **settings: object) -> list[str]:
        path = run_to_disk(small_config(rounds=1, **settings), tmp_path / name)
        rows = csv.DictReader((path / "metrics.csv").open())
        return [row["accuracy"] for row in rows if row["scope"] == "site"]

    assert metrics("k1", cluster__k=1) == metrics("fedavg", method="fedavg")
    assert metrics("kn", cluster__k=6) == metrics("local", method="local")


def test_average_is_weighted_by_training_samples(small_config: MakeConfig) -> None:
    """One round of FedAvg against the obvious mean of what the sites sent, batch-norm statistics included."""
    sent: list[wire.Update] = []

    def spy(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train":
            sent.append(update_in(reply))
        return reply

    record, _ = run(small_config(method="fedavg", rounds=1, train__model="resnet9"), fault=spy)
    model = record.of(RoundFinished)[0].models[0]
    total = sum(update.samples for update in sent)
    assert any("running_var" in name for name in model)
    for name, array in model.items():
        expected = sum(update.state[name].astype(np.float64) * update.samples for update in sent) / total
        np.testing.assert_allclose(array, np.rint(expected) if array.dtype == np.int64 else expected, atol=1e-6)


@pytest.mark.parametrize("method", ["fmcl", "fedcm"])
def test_same_seed_same_bits_in_any_order_of_replies(small_config: MakeConfig, tmp_path: Path, method: str) -> None:
    config = small_config(rounds=2, method=method)
    first = run_to_disk(config, tmp_path / "a")
    for order_seed in (1, 2):
        again = run_to_disk(config, tmp_path / str(order_seed), order_seed=order_seed)
        for name in ("metrics.csv", "clusters.json", "distances.npy"):
            assert (again / name).read_bytes() == (first / name).read_bytes()
        for model in (first / "models").iterdir():
            assert (again / "models" / model.name).read_bytes() == model.read_bytes()


def test_another_seed_gives_another_run(small_config: MakeConfig, tmp_path: Path) -> None:
    first = run_to_disk(small_config(rounds=1), tmp_path / "a")
    other = run_to_disk(small_config(rounds=1, seed=1), tmp_path / "b")
    assert (first / "metrics.csv").read_bytes() != (other / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda u: with_state(u, lambda s: s | {"head.bias": np.full_like(s["head.bias"], np.nan)}), "finite"),
        (lambda u: with_state(u, lambda s: s | {"head.bias": np.zeros(3, np.float32)}), "(3,)"),
        (lambda u: with_state(u, lambda s: {k: v for k, v in s.items() if k != "head.bias"}), "head.bias"),
        (lambda u: with_state(u, lambda s: s | {"extra": np.zeros(3, np.float32)}), "extra"),
        (lambda u: with_state(u, lambda s: s | {"head.bias": s["head.bias"].astype(np.float64)}), "float64"),
        (lambda u: with_state(u, lambda s: s | {"head.bias": s["head.bias"] + np.float32(1e30)}), "head.bias"),
        (lambda u: wire.Update(u.state, 10**9, u.loss, u.seconds), "1000000000 training samples"),
    ],
)
def test_bad_updates_are_named_and_left_out(
    small_config: MakeConfig, change: Callable[[wire.Update], wire.Update], reason: str
) -> None:
    config = small_config(method="fedavg", rounds=1)
    record, _ = run(config, fault=on("train", 2, altered_update(change)))
    assert reason in record.reasons["train", "002"]
    assert len(record.of(SiteLeftOut)) == 1
    without, _ = run(config, fault=on("train", 2, failed))
    poisoned, clean = record.of(RoundFinished)[0].models[0], without.of(RoundFinished)[0].models[0]
    for name in clean:
        np.testing.assert_array_equal(poisoned[name], clean[name])


def test_errors_from_the_superlink_are_traced_to_the_site(small_config: MakeConfig) -> None:
    record, _ = run(small_config(method="fedavg", rounds=1), fault=on("train", 4, failed))
    assert "node unavailable" in record.reasons["train", "004"]


def test_a_late_site_is_left_out_of_the_round(small_config: MakeConfig) -> None:
    config = small_config(method="fedavg", rounds=1, round__deadline=1.0)
    record, _ = run(config, fault=on("train", 1, lambda request, reply: None))
    assert "no reply within 1 s" in record.reasons["train", "001"]
    assert record.of(RoundFinished)


def test_a_group_without_enough_replies_keeps_its_model(small_config: MakeConfig) -> None:
    config = small_config(method="local", rounds=1, round__deadline=1.0)
    record, _ = run(config, fault=on("train", 3, lambda request, reply: None))
    (kept,) = record.of(GroupKept)
    assert (kept.group, kept.replies) == (3, 0)
    models = record.of(RoundFinished)[0].models
    assert not np.array_equal(models[0]["head.bias"], models[3]["head.bias"])
    np.testing.assert_array_equal(models[3]["head.bias"], initial_bias(config))


def initial_bias(config: Config) -> np.ndarray:
    return initial_state(config)["head.bias"]


def test_min_replies_protects_a_group_from_a_single_update(small_config: MakeConfig) -> None:
    config = small_config(method="local", rounds=1, round__min_replies=2)
    record, _ = run(config)
    assert len(record.of(GroupKept)) == 6
    np.testing.assert_array_equal(record.of(RoundFinished)[0].models[0]["head.bias"], initial_bias(config))


def test_a_bad_signature_excludes_the_site_with_a_reason(small_config: MakeConfig) -> None:
    def spoil(request: Message, reply: Message) -> Message:
        reply.content["signature"] = wire.pack_arrays({"classes": np.array([99])})
        return reply

    record, grid = run(small_config(rounds=1), fault=on("query", 5, spoil))
    assert "signature" in record.reasons["enrol", "node 105"]
    assert len(record.of(GroupsFormed)[0].sites) == 5
    assert 105 not in {m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"}


def test_a_site_with_another_encoder_is_turned_away(small_config: MakeConfig) -> None:
    def shorten(request: Message, reply: Message) -> Message:
        arrays = wire.unpack_arrays(reply.content.array_records["signature"])
        reply.content["signature"] = wire.pack_arrays(
            arrays | {"prototypes": np.ascontiguousarray(arrays["prototypes"][:, :7])}
        )
        return reply

    record, _ = run(small_config(rounds=0), fault=on("query", 0, shorten))
    assert "7 dimensions" in record.reasons["enrol", "node 100"]


def test_no_usable_site_ends_the_run_with_a_reason(small_config: MakeConfig) -> None:
    with pytest.raises(NoSites):
        run(small_config(data__source="npz", data__path="/does/not/exist.npz", data__classes="a,b"))


def test_a_refusal_reaches_the_server_in_words(small_config: MakeConfig) -> None:
    record = Record()
    settings = {"data__source": "npz", "data__path": "/does/not/exist.npz", "data__classes": "a,b"}
    config = small_config(**settings, sites=2)
    with pytest.raises(NoSites):
        conduct(LoopbackGrid(2), config, [record])
    assert "/does/not/exist.npz" in record.reasons["enrol", "node 100"]
    assert record.of(RunEnded)[0].outcome == "failed"


def test_nobody_connected_says_what_to_do(small_config: MakeConfig) -> None:
    with pytest.raises(NoSites, match="start the SuperNodes"):
        run(small_config(round__start_timeout=0.1), grid=LoopbackGrid(0))


def test_zero_rounds_stop_after_grouping(small_config: MakeConfig, tmp_path: Path) -> None:
    path = run_to_disk(small_config(rounds=0), tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    assert summary["final"] is None
    assert len(summary["labels"]) == 6
    assert np.load(path / "distances.npy").shape == (6, 6)


@pytest.mark.parametrize("fraction", [0.01, 0.5])
def test_partial_participation_trains_at_least_one_site_per_group(small_config: MakeConfig, fraction: float) -> None:
    record, grid = run(small_config(rounds=3, cluster__k=2, train__fraction=fraction))
    formed = record.of(GroupsFormed)[0]
    sizes = np.bincount(formed.labels)
    expected = sum(max(1, round(fraction * size)) for size in sizes)
    trained = [m for m in grid.pushed if m.metadata.message_type == "train"]
    assert len(trained) == 3 * expected
    # Rounds 1 and 2 are tested along with the training of the next one; who is not drawn for that tests only.
    assert len([m for m in grid.pushed if m.metadata.message_type == "evaluate"]) == 2 * (6 - expected) + 6
    assert [set(event.sites) for event in record.of(RoundFinished)] == 3 * [set(formed.sites)]


def test_drawn_from_all_as_many_train_however_many_groups_there_are(small_config: MakeConfig) -> None:
    config = small_config(method="local", rounds=3, train__fraction=0.34, train__draw="all")
    record, grid = run(config)
    assert len([m for m in grid.pushed if m.metadata.message_type == "train"]) == 3 * 2
    # Who was not drawn has its model still, and is tested with it; nobody is told that it had too few replies.
    assert [set(event.sites) for event in record.of(RoundFinished)] == 3 * [{f"{n:03d}" for n in range(6)}]
    assert not record.of(GroupKept)


class TestComingsAndGoings:
    """Sites join late, leave, and come back; nobody else is moved for them."""

    @pytest.mark.parametrize("method", ["fmcl", "fedcm"])
    def test_a_late_site_is_placed_with_its_likes(self, small_config: MakeConfig, method: str) -> None:
        config = small_config(method=method, rounds=2, sites=9, partition__scheme="disjoint", partition__groups=3)
        grid = LoopbackGrid(9)
        grid.disconnect(108)
        record = Record()

        class LetIn:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number == 1:
                    grid.connect(108, 8)

        conduct(grid, config.model_copy(update={"sites": 8}), [record, LetIn()])
        (placed,) = record.of(SitePlaced)
        labels = record.of(RoundFinished)[-1].labels
        # Sites of one label group were put together before; the newcomer joins the two that share its labels.
        holds = label_sets(record)
        expected = {labels[site] for site in holds if site != "008" and holds[site] == holds["008"]}
        assert {placed.group} == expected
        assert 0 <= placed.confidence <= 1
        assert len(record.of(GroupsFormed)) == 1

    def test_a_site_that_left_is_named_and_not_waited_for(self, small_config: MakeConfig) -> None:
        grid = LoopbackGrid(6)

        class Unplug:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number == 1:
                    grid.disconnect(103)

        record = Record()
        conduct(grid, small_config(method="fedavg"), [record, Unplug()])
        assert record.reasons["train", "003"] == "not connected"
        assert record.of(RoundFinished)[-1].round_number == 2

    def test_a_site_that_comes_back_on_another_node_keeps_its_name_and_group(self, small_config: MakeConfig) -> None:
        grid = LoopbackGrid(6)

        class Replug:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number == 1:
                    grid.disconnect(103)
                    grid.connect(203, 3)

        record = Record()
        conduct(grid, small_config(), [record, Replug()])
        first, last = record.of(RoundFinished)
        assert first.labels == last.labels
        assert 203 in {m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"}
        assert not record.of(SitePlaced)

    def test_a_site_that_comes_back_twice_still_knows_what_it_said_the_first_time(
        self, small_config: MakeConfig, tmp_path: Path
    ) -> None:
        grid, kept = LoopbackGrid(4), []
        swap = DriftEvent(kind="swap", at=3, sites=("000", "001"))
        config = small_config(sites=4, rounds=3, drift=(swap,), migration__rule="guarded", encoder__name="pixels")

        class Replug:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number < 3:
                    grid.disconnect(3 + 100 * event.round_number)
                    grid.connect(103 + 100 * event.round_number, 3)
                elif isinstance(event, RoundTrained):
                    kept.extend(sorted(path.stem for path in tmp_path.rglob("003/description/*.safetensors")))

        conduct(grid, config, [Replug()], directory=tmp_path)
        # Said in rounds 0, 2 and 3; a server that goes back to the checkpoint of round 2 asks by the second.
        assert kept[-2:] == ["round-0000000002", "round-0000000003"]

    def test_a_site_that_restarts_before_its_old_node_is_known_to_be_gone_gets_back_in(
        self, small_config: MakeConfig
    ) -> None:
        grid = LoopbackGrid(6)

        class Replug:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number == 1:
                    grid.connect(203, 3)
                if isinstance(event, RoundTrained) and event.round_number == 2:
                    grid.disconnect(103)

        record = Record()
        conduct(grid, small_config(method="fedavg", rounds=3), [record, Replug()])
        assert "'003'" in record.reasons["enrol", "node 203"]
        trained = [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"]
        assert trained[-6:].count(203) == 1

    def test_a_site_that_failed_to_introduce_itself_is_asked_again(self, small_config: MakeConfig) -> None:
        failures: list[int] = []

        def once(index: int, request: Message, reply: Message) -> Message:
            if index == 2 and request.metadata.message_type == "query.hello" and not failures:
                failures.append(index)
                return failed(request, reply)
            return reply

        record, _ = run(small_config(method="fedavg", rounds=3), fault=once)
        assert "node unavailable" in record.reasons["enrol", "node 102"]
        assert "002" in record.of(RoundFinished)[-1].sites

    def test_newcomers_do_not_outvote_the_members(self, small_config: MakeConfig) -> None:
        def shorten(index: int, request: Message, reply: Message) -> Message:
            if index >= 2 and request.metadata.message_type == "query.signature":
                arrays = wire.unpack_arrays(reply.content["signature"])
                short = np.ascontiguousarray(arrays["prototypes"][:, :7])
                reply.content["signature"] = wire.pack_arrays(arrays | {"prototypes": short})
            return reply

        grid = LoopbackGrid(6, fault=shorten)
        for node in range(102, 106):
            grid.disconnect(node)

        class LetIn:
            def hear(self, event: Event) -> None:
                if isinstance(event, RoundTrained) and event.round_number == 1:
                    for index in range(2, 6):
                        grid.connect(100 + index, index)

        record = Record()
        conduct(grid, small_config(sites=2), [record, LetIn()])
        assert all("7 dimensions" in record.reasons["enrol", f"node {node}"] for node in range(102, 106))
        assert record.of(RunEnded)[0].outcome == "finished"

    def test_two_sites_with_one_name_are_not_mixed_up(self, small_config: MakeConfig) -> None:
        grid = LoopbackGrid(6)
        grid.connect(300, 2)
        record = Record()
        conduct(grid, small_config(method="fedavg", rounds=1), [record])
        refused = [reason for (stage, _), reason in record.reasons.items() if stage == "enrol"]
        assert len(refused) == 1
        assert "'002'" in refused[0]
        assert len(record.of(GroupsFormed)[0].sites) == 6


def test_a_round_nobody_can_test_still_leaves_its_models(small_config: MakeConfig, tmp_path: Path) -> None:
    def all_fail(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "evaluate":
            return failed(request, reply)
        if reply.content.pop("evaluation", None):
            reply.content.update(wire.pack_untested("it cannot"))
        return reply

    path = run_to_disk(small_config(method="fedavg", rounds=2), tmp_path / "run", fault=all_fail)
    assert (path / "models" / "group-0.safetensors").exists()
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["rounds"], summary["final"]["accuracy"], summary["best"]) == (2, None, None)


@pytest.mark.parametrize("changing", [False, True], ids=["fixed data", "data that may change"])
def test_an_empty_evaluation_is_left_out(small_config: MakeConfig, changing: bool) -> None:
    first = iter([True])

    def emptied(index: int, request: Message, reply: Message) -> Message:
        if index != 1 or "statistics" not in reply.content or not next(first, False):
            return reply
        arrays = wire.unpack_arrays(reply.content["statistics"])
        reply.content["statistics"] = wire.pack_arrays({name: np.zeros_like(array) for name, array in arrays.items()})
        return reply

    config = small_config(method="fedavg", data__watch=changing)
    record, _ = run(config, fault=emptied)
    one, two = record.of(RoundFinished)
    assert "001" not in one.sites
    assert one.mean_site_accuracy > 0
    assert "001" in two.sites
    # Where data may change, to have nothing to test on is no fault.
    left_out = [(event.stage, event.round_number, event.site) for event in record.of(SiteLeftOut)]
    assert left_out == ([] if changing else [("evaluate", 1, "001")])


def test_an_evaluation_of_far_too_many_samples_is_left_out(small_config: MakeConfig) -> None:
    def inflated(request: Message, reply: Message) -> Message:
        arrays = wire.unpack_arrays(reply.content["statistics"])
        reply.content["statistics"] = wire.pack_arrays({name: array * 1000 for name, array in arrays.items()})
        return reply

    record, _ = run(small_config(method="fedavg", rounds=1), fault=on("evaluate", 1, inflated))
    assert "test samples after declaring" in record.reasons["evaluate", "001"]
    assert "001" not in record.of(RoundFinished)[0].sites


def test_what_goes_wrong_with_a_sites_own_data_stays_in_its_log(tmp_path: Path, small_config: MakeConfig) -> None:
    from flwr.app import Context, RecordDict

    from client.app import app

    LoopbackGrid(1)
    (tmp_path / "data" / "DOE-JOHN-1956").mkdir(parents=True)
    config = small_config(data__classes="a,b", data__source="folder")
    request = Message(wire.pack_task(wire.Task(config.for_site(), 0, 1)), 7, "query.hello")
    context = Context(
        run_id=1,
        node_id=7,
        node_config={"data-path": str(tmp_path / "data"), "cache": str(tmp_path / "cache")},
        state=RecordDict(),
        run_config={},
    )
    request.metadata.__dict__["_message_id"] = "m"
    reply = app(request, context)
    with pytest.raises(wire.WireError) as caught:
        wire.unpack_introduction(reply.content, classes=2, fingerprint=None, limit_mb=1)
    assert "the site's own log says more" in str(caught.value)
    assert "DOE" not in str(reply.content)
    assert str(tmp_path) not in str(reply.content)


def test_an_interrupted_run_leaves_a_valid_directory(small_config: MakeConfig, tmp_path: Path) -> None:
    stop = threading.Event()
    config = small_config(method="fedavg", rounds=50)

    class PressCtrlC:
        def hear(self, event: Event) -> None:
            if isinstance(event, RoundFinished) and event.round_number == 2:
                stop.set()

    class NeverIdle(LoopbackGrid):
        """Holds one reply back for a moment, so that the grid has to wait."""

        def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
            return [] if stop.is_set() else super().pull_messages(message_ids)

    path = made(tmp_path / "run")
    conduct(NeverIdle(6), config, [*run_listeners(path), PressCtrlC()], stop)
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["outcome"], summary["rounds"]) == ("interrupted", 2)
    assert json.loads((path / "run.json").read_text())["outcome"] == "interrupted"
    rows = list(csv.DictReader((path / "metrics.csv").open()))
    assert {row["round"] for row in rows} == {"1", "2"}
    assert (path / "models" / "group-0.safetensors").exists()
    assert json.loads((path / "events.jsonl").read_text().splitlines()[-1])["event"] == "RunEnded"


def test_a_listener_that_fails_does_not_stop_the_run(small_config: MakeConfig) -> None:
    class Broken:
        def hear(self, event: Event) -> None:
            raise OSError("disk full")

    record = Record()
    conduct(LoopbackGrid(6), small_config(method="fedavg", rounds=1), [Broken(), record])
    assert record.of(RunEnded)[0].outcome == "finished"


def test_it_also_works_on_flowers_own_grid_without_the_wrapper(small_config: MakeConfig) -> None:
    from server.history.events import Audience
    from server.methods import get_method
    from server.strategy import ClusteredStrategy

    config = small_config(rounds=2)
    record = Record()
    strategy = ClusteredStrategy(config, get_method("fmcl"), initial_state(config), Audience([record]))
    grid = LoopbackGrid(6)
    assert not isinstance(grid, StreamingGrid)
    result = strategy.start(grid=grid, initial_arrays=wire.pack_arrays(initial_state(config)), num_rounds=2)
    assert set(result.evaluate_metrics_clientapp) == {2}
    assert len(record.of(RoundFinished)) == 2


def test_a_newcomer_stays_in_the_summary_of_a_run_that_ends_before_its_first_test(
    small_config: MakeConfig, tmp_path: Path
) -> None:
    """The models of the round before it came are told after it was placed."""
    config = small_config(method="fedavg", rounds=3)
    grid = LoopbackGrid(config.sites - 1)
    grid._count = config.sites
    out = made(tmp_path / "run")

    class Comings:
        def hear(self, event: Event) -> None:
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(100 + config.sites - 1, config.sites - 1)
            if isinstance(event, RoundFinished) and event.round_number == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct(grid, config.model_copy(update={"sites": config.sites - 1}), [*run_listeners(out), Comings()])
    summary = Summary(out)
    summary.hear(RunStarted(config))
    for event in read_events(out).events:
        summary.hear(event)
    summary.hear(RunEnded("interrupted", ""))
    assert len(json.loads((out / "summary.json").read_text())["labels"]) == config.sites
