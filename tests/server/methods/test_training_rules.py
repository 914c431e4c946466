"""What methods do during training: CFL's splits and IFCA's choices, as rules and in whole runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from common import wire
from common.config import Config, SettingsError, parse
from common.extras import InvalidExtras
from common.methods.ifca import CHOICE, LOSSES, OTHERS
from common.state import Extras, State
from server.app import initial_state
from server.history.events import (
    GroupsFormed,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    SiteEnrolled,
    SiteLeftOut,
    SitesMoved,
)
from server.methods import METHODS, settle
from server.methods.cfl import RecursiveBipartition
from server.methods.ifca import LeastLoss
from server.methods.training import Contribution, GroupingRule, Move
from tests.support.loopback import LoopbackGrid
from tests.support.rules import Sites
from tests.support.runs import MakeConfig, Record, failed, on, run, run_to_disk


class Starts(Sites):
    """Starts are numbered, and `losses` tells the sites' losses under some of them."""

    def __init__(self, losses: Callable[[Sequence[State]], Mapping[str, Sequence[float]]] = lambda starts: {}) -> None:
        super().__init__()
        self._losses = losses

    def sizes(self, group: int) -> dict[str, int]:
        raise AssertionError("nobody needs to know")

    def draw(self, number: int) -> State:
        return {"number": np.array(number)}

    def ask(self, question: str, extras: Extras, check: Callable[[Extras], None], **_: object) -> dict[str, Extras]:
        assert question == LOSSES
        starts = [extras[f"{OTHERS}.{number}"] for number in range(len(extras))]
        answers: dict[str, Extras] = {}
        for site, values in self._losses(starts).items():
            answer: Extras = {LOSSES: {"values": np.array(values)}}
            with suppress(InvalidExtras):
                check(answer)
                answers[site] = answer
        return answers


def cfl(after: int = 0, mean_norm: float = 0.4, max_norm: float = 1.6, fraction: float = 1.0) -> RecursiveBipartition:
    values = {"cfl.after": after, "cfl.mean_norm": mean_norm, "cfl.max_norm": max_norm, "train.fraction": fraction}
    return RecursiveBipartition(parse({"method": "cfl", **values}), Starts())


def splits_of(rule: GroupingRule, round_number: int, groups: Mapping[int, Sequence[str]]) -> list[Move]:
    return list(rule.review(round_number, groups))


def show(rule: GroupingRule, changes: Mapping[str, Sequence[float]], group: int = 0, round_number: int = 1) -> None:
    for site, change in changes.items():
        before = {"head.weight": np.ones(len(change), np.float32), "norm.running_mean": np.zeros(1, np.float32)}
        after = {
            "head.weight": before["head.weight"] + np.array(change, np.float32),
            # Statistics are not trained: however far they go, they must not count.
            "norm.running_mean": np.full(1, 1e6, np.float32),
        }
        rule.observe(Contribution(round_number, site, group, 10, before, after))


OPPOSED = {"a": (2, 0), "b": (-2, 0), "c": (2, 0.1), "d": (-2, 0.1)}


class TestCfl:
    def test_a_group_that_disagrees_is_split(self) -> None:
        rule = cfl()
        show(rule, OPPOSED)
        (split,) = splits_of(rule, 1, {0: list("abcd")})
        assert (split.sites, split.origin, split.target) == (("b", "d"), 0, None)
        assert "mean update" in split.evidence.reason

    @pytest.mark.parametrize(
        ("changes", "round_number"),
        [
            pytest.param({"a": (2, 0), "b": (2, 0), "c": (2, 0.1)}, 2, id="still moving as a whole"),
            pytest.param({"a": (1, 0), "b": (-1, 0), "c": (0.1, 0)}, 2, id="nobody moves far"),
            pytest.param({"a": (2, 0), "b": (-2, 0)}, 2, id="two sites"),
            pytest.param(OPPOSED, 1, id="too early"),
        ],
    )
    def test_otherwise_it_is_not(self, changes: dict[str, Sequence[float]], round_number: int) -> None:
        rule = cfl(after=1)
        show(rule, changes, round_number=round_number)
        assert splits_of(rule, round_number, {0: list(changes)}) == []

    def test_the_mean_is_weighted_by_samples(self) -> None:
        rule = cfl()
        show(rule, OPPOSED)
        before = {"head.weight": np.zeros(2, np.float32)}
        heavy = {"head.weight": np.array([2, 0], np.float32)}
        rule.observe(Contribution(1, "a", 0, 1000, before, heavy))
        assert splits_of(rule, 1, {0: list("abcd")}) == []

    def test_after_a_second_split_everybody_is_still_in_exactly_one_group(self) -> None:
        """The second split works on the part's own updates: their positions are not those of all sites."""
        groups = {0: list("abcdef")}
        rule = cfl()
        directions = {"a": (3, 0), "b": (-3, 0.5), "c": (3, 0), "d": (-3, -0.5), "e": (-3, 0.5), "f": (-3, -0.5)}
        show(rule, {"a": (6, 0), "b": (-3, 0), "c": (6, 0), "d": (-3, 0), "e": (-3, 0), "f": (-3, 0)})
        (first,) = splits_of(rule, 1, groups)
        assert first.sites == ("b", "d", "e", "f")
        groups = {0: ["a", "c"], 1: list(first.sites)}
        show(rule, {site: directions[site] for site in "ac"})
        show(rule, {"b": (0, 3), "d": (0, -3), "e": (0, 3), "f": (0, -3)}, group=1, round_number=2)
        (second,) = splits_of(rule, 2, groups)
        assert second.sites == ("d", "f")

    @given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(0, 2))
    def test_any_number_of_splits_leaves_a_partition(self, seed: int, count: int, quiet: int) -> None:
        rng = np.random.default_rng(seed)
        names = [f"{number:02d}" for number in range(count)]
        silent = set(rng.choice(names, quiet, replace=False).tolist())
        group_of = dict.fromkeys(names, 0)
        rule = cfl(mean_norm=1e9, max_norm=1e-9)
        for round_number in range(1, count + 7):
            groups: dict[int, list[str]] = {}
            for name, group in group_of.items():
                groups.setdefault(group, []).append(name)
            for group, members in groups.items():
                heard = [name for name in members if name not in silent]
                show(rule, {name: rng.normal(size=3).tolist() for name in heard}, group, round_number)
            for split in splits_of(rule, round_number, groups):
                origins = {group_of[name] for name in split.sites}
                assert len(origins) == 1
                assert set(split.sites) < set(groups[origins.pop()])
                new = max(group_of.values()) + 1
                group_of |= dict.fromkeys(split.sites, new)
            assert sorted(group_of) == names
        talking = [group for name, group in group_of.items() if name not in silent]
        assert max(talking.count(group) for group in talking) <= 2

    def test_a_split_waits_until_everybody_was_heard_and_what_is_known_survives_a_restart(self) -> None:
        rule = cfl()
        show(rule, {name: OPPOSED[name] for name in "abc"})
        assert splits_of(rule, 1, {0: list("abcd")}) == []
        again = cfl()
        again.restore(rule.state())
        show(again, {"d": OPPOSED["d"]}, round_number=2)
        (split,) = splits_of(again, 2, {0: list("abcd")})
        assert split.sites == ("b", "d")
        assert again.state() == {"latest": [], "silent": []}

    def test_a_silent_member_holds_nobody_up(self) -> None:
        """It is waited for once; it stays in its group, for nobody knows better; then no more, until it is heard."""
        rule, groups = cfl(), {0: list("abcde")}
        splits = []
        for round_number in range(1, 8):
            show(rule, {name: change for name, change in OPPOSED.items() if name != "c"}, round_number=round_number)
            show(rule, {"c": (2, 0.1) if round_number > 2 else (-2, 0)}, round_number=round_number)
            splits.append([split.sites for split in splits_of(rule, round_number, groups)])
            again = cfl()
            again.restore(rule.state())
            rule = again
        assert splits == [[]] * 4 + [[("b", "d")]] * 3
        show(rule, {"e": (2, 0)}, round_number=8)
        assert splits_of(rule, 8, groups) == []
        assert [entry["site"] for entry in rule.state()["latest"]] == ["e"]

    def test_the_fewer_train_in_a_round_the_longer_a_member_is_waited_for(self) -> None:
        rule = cfl(fraction=0.4)
        names = list("abcde")
        for round_number in range(1, 20):
            drawn = {0: "ab", 1: "cd"}[round_number % 2]
            show(rule, {name: OPPOSED[name] for name in drawn}, round_number=round_number)
            if splits_of(rule, round_number, {0: names}):
                break
        # Two of five are drawn: five times each in 12.5 rounds.
        assert round_number == 13

    def test_what_a_site_sent_before_it_left_its_group_is_forgotten(self) -> None:
        rule = cfl()
        show(rule, {name: OPPOSED[name] for name in "abc"})
        assert splits_of(rule, 1, {0: ["a", "d"], 1: ["b"]}) == []
        assert [entry["site"] for entry in rule.state()["latest"]] == ["a"]

    def test_an_update_made_in_another_group_does_not_count(self) -> None:
        rule = cfl()
        show(rule, {name: OPPOSED[name] for name in "abc"})
        show(rule, {"d": OPPOSED["d"]}, group=7)
        assert splits_of(rule, 1, {0: list("abcd")}) == []


def ifca(answer: Callable[[Sequence[State]], Mapping[str, Sequence[float]]] = lambda starts: {}) -> LeastLoss:
    return LeastLoss(parse({"method": "ifca", "cluster.k": 2}), Starts(answer))


class TestIfca:
    def test_starts_are_drawn_again_until_they_are_chosen_fairly(self) -> None:
        asked: list[list[int]] = []

        def losses(models: Sequence[State]) -> dict[str, Sequence[float]]:
            numbers = [int(model["number"]) for model in models]
            asked.append(numbers)
            fair = numbers == [4, 5]
            return {f"{site}": (1.0, 0.5 if fair and site % 2 else 2.0) for site in range(6)}

        opening = ifca(losses).open()
        assert asked == [[0, 1], [2, 3], [4, 5]]
        assert opening.groups == {"0": 0, "1": 1, "2": 0, "3": 1, "4": 0, "5": 1}
        assert [int(model["number"]) for model in opening.models.values()] == [4, 5]

    def test_the_fairest_of_ten_draws_stays(self) -> None:
        draws = iter(range(10))

        def losses(models: Sequence[State]) -> dict[str, Sequence[float]]:
            one_defects = next(draws) == 3
            return {f"{site}": (1.0, 0.5 if one_defects and not site else 2.0) for site in range(9)}

        opening = ifca(losses).open()
        assert int(opening.models[0]["number"]) == 6
        assert opening.groups["0"] == 1

    def test_nobody_answering_is_no_reason_to_fail(self) -> None:
        assert ifca().open().groups == {}

    def test_an_answer_of_another_length_is_no_choice(self) -> None:
        opening = ifca(lambda starts: {"a": (1.0, 0.5), "b": (1.0, 2.0), "c": (0.5,), "d": (3.0, 2.0, 1.0)}).open()
        assert opening.groups == {"a": 1, "b": 0}

    def test_only_what_was_offered_can_have_been_trained(self) -> None:
        rule = ifca()
        models = {group: {"number": np.array(group)} for group in (0, 2)}
        assert rule.beside(0, models) == {f"{OTHERS}.2": models[2]}
        assert rule.trained(0, {CHOICE: {"group": np.array(2)}}) == 2
        with pytest.raises(InvalidExtras, match="group 1, which it was not offered"):
            rule.trained(0, {CHOICE: {"group": np.array(1)}})


def separated(small_config: MakeConfig, method: str, **settings: object) -> Config:
    """Six sites in three groups without a common label."""
    groups = {"partition__scheme": "disjoint", "partition__groups": 3, "cluster__k": 3}
    return small_config(**({"method": method, "rounds": 4, "train__batch_size": 8} | groups | settings))


def found_the_label_groups(record: Record) -> bool:
    cards = [event.card for event in record.of(SiteEnrolled)]
    holds = {card.name: tuple(np.flatnonzero(card.class_counts)) for card in cards}
    labels = record.of(RoundFinished)[-1].labels
    return all((labels[a] == labels[b]) == (holds[a] == holds[b]) for a in labels for b in labels)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ifca_recovers_separated_groups(small_config: MakeConfig, seed: int) -> None:
    record, grid = run(separated(small_config, "ifca", seed=seed))
    assert found_the_label_groups(record)
    offered = [
        {key for key in message.content if key == "model" or key.startswith(f"extra {OTHERS}.")}
        for message in grid.pushed
        if message.metadata.message_type == "train"
    ]
    assert {len(models) for models in offered} == {3}
    assert set(record.of(RoundFinished)[-1].models) == {0, 1, 2}


def test_ifca_counts_the_bytes_of_all_its_models(small_config: MakeConfig) -> None:
    config = separated(small_config, "ifca", rounds=1)
    record, _ = run(config)
    one = wire.size(wire.pack_task(wire.Task(config.for_site(), 0, 1), wire.pack_arrays(initial_state(config))))
    sent = {event.stage: event.bytes_sent for event in record.of(ReplyAccepted)}
    assert (sent["train"], sent["evaluate"]) == (3 * one, one)


def test_the_first_of_ifcas_first_starts_is_what_all_methods_start_from(small_config: MakeConfig) -> None:
    config = separated(small_config, "ifca")
    first, second = initial_state(config), initial_state(config, 1)
    assert all(np.array_equal(first[name], initial_state(config, 0)[name]) for name in first)
    assert not np.array_equal(first["head.weight"], second["head.weight"])


@pytest.mark.parametrize("seed", [0, 1])
def test_cfl_splits_separated_groups(small_config: MakeConfig, seed: int) -> None:
    config = separated(small_config, "cfl", cfl__after=1, cfl__mean_norm=10, cfl__max_norm=0.01, seed=seed)
    record, _ = run(config)
    assert found_the_label_groups(record)
    assert len(set(record.of(GroupsFormed)[0].labels)) == 1
    moves = record.of(SitesMoved)
    assert all(event.founded and event.round_number > 1 for event in moves)
    assert set(record.of(RoundFinished)[-1].models) == {0, 1, 2}


def test_cfl_that_never_splits_is_fedavg(small_config: MakeConfig, tmp_path: Path) -> None:
    first = run_to_disk(small_config(method="cfl"), tmp_path / "cfl")
    second = run_to_disk(small_config(method="fedavg"), tmp_path / "fedavg")
    assert (first / "metrics.csv").read_bytes() == (second / "metrics.csv").read_bytes()


QUICK_SPLITS = {"cfl__after": 0, "cfl__mean_norm": 10, "cfl__max_norm": 0.01}


@pytest.mark.parametrize("method", ["cfl", "ifca"])
def test_neither_the_order_of_replies_nor_who_is_drawn_first_matters(
    small_config: MakeConfig, tmp_path: Path, method: str
) -> None:
    config = separated(small_config, method, rounds=3, train__fraction=0.5, **QUICK_SPLITS)
    first = run_to_disk(config, tmp_path / "a")
    again = run_to_disk(config, tmp_path / "b", order_seed=5)
    for name in ("metrics.csv", "clusters.json"):
        assert (again / name).read_bytes() == (first / name).read_bytes()


@pytest.mark.parametrize("method", ["cfl", "ifca"])
def test_a_site_that_fails_is_left_out_and_the_rest_goes_on(small_config: MakeConfig, method: str) -> None:
    record, _ = run(separated(small_config, method, **QUICK_SPLITS), fault=on("train", 2, failed))
    assert {event.site for event in record.of(SiteLeftOut)} == {"002"}
    assert len(record.of(RoundFinished)) == 4
    labels = record.of(RoundFinished)[-1].labels
    if method == "ifca":
        assert len({labels[site] for site in ("000", "001", "003", "004", "005")}) == 3
    else:
        # Four rounds are too few to give up the missing site.
        assert len(set(labels.values())) == 1


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (np.array(3), "group 3, which it was not offered"),
        (np.array(-1), "below 0"),
        (np.array(1.0), "group is float64"),
        (np.array([0, 1]), "a single number"),
    ],
)
def test_a_site_that_says_it_trained_what_it_was_not_offered_is_left_out(
    small_config: MakeConfig, choice: np.ndarray, reason: str
) -> None:
    def lie(request: Message, reply: Message) -> Message:
        reply.content[f"extra {CHOICE}"] = wire.pack_arrays({"group": choice})
        return reply

    record, _ = run(separated(small_config, "ifca", rounds=1), fault=on("train", 1, lie))
    assert reason in record.reasons["train", "001"]
    assert len(record.of(SiteLeftOut)) == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros(3, np.float32), "values is float32"),
        (np.zeros((3, 1)), "values is float64(3, 1)"),
        (np.array([0, np.nan, 0]), "not finite"),
        (np.array([0, -1.0, 0]), "below 0"),
    ],
)
def test_losses_that_cannot_be_true_are_refused(small_config: MakeConfig, values: np.ndarray, reason: str) -> None:
    def spoil(request: Message, reply: Message) -> Message:
        reply.content[f"extra {LOSSES}"] = wire.pack_arrays({"values": values})
        return reply

    record, _ = run(separated(small_config, "ifca", rounds=1), fault=on("query.method", 4, spoil))
    assert reason in record.reasons["enrol", "004"]
    assert "004" in record.of(RoundFinished)[0].labels


def test_a_model_that_gives_no_numbers_is_not_chosen(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss travels as the largest number there is: arrays that travel are finite."""
    told: list[np.ndarray] = []

    def broken(config: Config, number: int = 0) -> State:
        state = initial_state(config, number)
        return {name: array * np.float32(1e30 if number % 3 == 1 else 1) for name, array in state.items()}

    def spy(request: Message, reply: Message) -> Message:
        told.append(wire.unpack_arrays(reply.content[f"extra {LOSSES}"])["values"])
        return reply

    monkeypatch.setattr("server.app.initial_state", broken)
    record, _ = run(separated(small_config, "ifca", rounds=0), fault=on("query.method", 4, spy))
    assert told
    assert all(values[1] == np.finfo(np.float64).max for values in told)
    assert all(values[0] < 100 and values[2] < 100 for values in told)
    assert 1 not in record.of(GroupsFormed)[0].labels


def test_a_latecomer_of_ifca_chooses_when_it_first_trains(small_config: MakeConfig) -> None:
    config = separated(small_config, "ifca", rounds=4)
    grid = LoopbackGrid(6)
    grid.disconnect(105)

    class Late(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(105, 5)

    from server.app import conduct

    record = Late()
    conduct(grid, config.model_copy(update={"sites": 5}), [record])
    assert found_the_label_groups(record)
    assert "005" in record.of(RoundFinished)[-1].labels


def test_methods_that_need_a_number_of_groups_say_so() -> None:
    for name in ("ifca", "fmcl-fixed-k"):
        with pytest.raises(SettingsError, match=r"needs cluster\.k"):
            settle(parse({"method": name}))
        assert settle(parse({"method": name, "cluster.k": 2})).cluster.k == 2


def test_what_a_recipe_fixes_wins_over_the_file_and_must_be_allowed() -> None:
    config = settle(parse({"method": "fecfl", "encoder.name": "timm:vit_tiny", "encoder.weights": "w.pth"}))
    assert (config.encoder.name, config.encoder.weights) == ("random:resnet18", "")
    assert settle(parse({"method": "fmcl-no-overlap"})).cluster.overlap is False
    for method in METHODS.values():
        parse({"method": method.name, **method.settings})


@pytest.mark.parametrize("method", ["cfl", "ifca"])
def test_migration_is_refused_where_sites_move_by_another_rule(method: str) -> None:
    with pytest.raises(SettingsError, match=r"migration\.rule"):
        settle(parse({"method": method, "cluster.k": 2, "migration.rule": "guarded"}))


@pytest.mark.parametrize("method", ["fecfl", "fecfl-fm", "pacfl", "pacfl-fm", "fmcl-fixed-k", "fmcl-no-overlap"])
def test_one_shot_methods_group_sites_with_the_same_labels_together(small_config: MakeConfig, method: str) -> None:
    record, grid = run(separated(small_config, method, rounds=1))
    assert len([m for m in grid.pushed if m.metadata.message_type.startswith("query")]) == 6
    (formed,) = record.of(GroupsFormed)
    assert formed.distance.shape == (6, 6)
    assert len(set(formed.labels)) == 3
    if method.startswith("pacfl"):
        assert found_the_label_groups(record)
