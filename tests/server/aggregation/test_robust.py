"""Means that a minority of sites cannot carry away: against slow, obvious versions, and under attack."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common import wire
from common.config import AggregateSettings, SettingsError, parse
from server.aggregation import Accumulator, Aggregation, GroupAverage, RejectedUpdate
from server.aggregation import trimmed as trimmed_module
from server.aggregation.clipped import ClippedAverage
from server.aggregation.trimmed import TrimmedMean
from server.history.events import RoundFinished
from server.methods import settle
from tests.support.runs import altered, on, run, update_in

State = dict[str, NDArray[Any]]

REFERENCE: State = {
    "head.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
    "norm.running_mean": np.zeros(2, np.float32),
    "norm.num_batches_tracked": np.array(5, np.int64),
    "empty": np.zeros((0, 4), np.float32),
}


def update(seed: int, reach: float = 0.1) -> State:
    rng = np.random.default_rng(seed)
    return {
        name: (array + reach * rng.normal(size=array.shape)).astype(array.dtype)
        if array.dtype == np.float32
        else np.array(rng.integers(0, 100), np.int64)
        for name, array in REFERENCE.items()
    }


def fed(accumulator: Accumulator, updates: Sequence[tuple[State, int]]) -> State:
    for state, samples in updates:
        accumulator.add(state, samples)
    return accumulator.result()


def bits(state: State) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


update_lists = st.lists(
    st.tuples(st.integers(0, 2**32), st.sampled_from([0.0, 1e-3, 0.1, 10.0]), st.integers(1, 50)),
    min_size=1,
    max_size=7,
).map(lambda items: [(update(seed, reach), samples) for seed, reach, samples in items])

RULES = [
    lambda: TrimmedMean(REFERENCE, 0.2),
    lambda: TrimmedMean(REFERENCE, 0.5),
    lambda: ClippedAverage(REFERENCE, 1000, {}),
    lambda: ClippedAverage(REFERENCE, 1000, {"parameters": 0.3, "statistics": 0.1}),
]


@given(update_lists, st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.5]))
def test_trimmed_mean_and_median_are_those_of_every_coordinate(updates: list[tuple[State, int]], trim: float) -> None:
    result = fed(TrimmedMean(REFERENCE, trim), updates)
    for name, array in REFERENCE.items():
        values = np.stack([state[name] for state, _ in updates]).astype(np.float64)
        if trim == 0.5:
            expected = np.median(values, axis=0)
        else:
            k = min((len(updates) - 1) // 2, max(1, int(trim * len(updates) + 1e-9))) if trim else 0
            expected = np.sort(values, axis=0)[k : len(updates) - k].mean(axis=0)
        assert result[name].dtype == array.dtype
        assert result[name].shape == array.shape
        np.testing.assert_allclose(result[name], np.rint(expected) if name.endswith("tracked") else expected, rtol=1e-6)


def test_a_trimmed_mean_of_many_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [(update(seed), 1) for seed in range(5)]
    whole = fed(TrimmedMean(REFERENCE, 0.2), updates)
    monkeypatch.setattr(trimmed_module, "BLOCK", 7)
    assert bits(fed(TrimmedMean(REFERENCE, 0.2), updates)) == bits(whole)


@given(update_lists)
def test_clipping_bounds_every_change_by_itself(updates: list[tuple[State, int]]) -> None:
    bounds = {"parameters": 0.3, "statistics": 0.1}
    result = fed(ClippedAverage(REFERENCE, 1000, bounds), updates)
    total = sum(samples for _, samples in updates)
    for part, name in (("parameters", "head.weight"), ("statistics", "norm.running_mean")):
        expected = np.zeros(REFERENCE[name].shape)
        for state, samples in updates:
            change = state[name].astype(np.float64) - REFERENCE[name]
            norm = np.linalg.norm(change)
            expected += samples / total * change * min(1.0, bounds[part] / norm if norm else 1.0)
        np.testing.assert_allclose(result[name] - REFERENCE[name], expected, atol=1e-6)


@given(update_lists)
def test_without_a_bound_changes_count_by_direction_and_reach_as_far_as_the_median(
    updates: list[tuple[State, int]],
) -> None:
    result = fed(ClippedAverage(REFERENCE, 1000, {}), updates)
    name = "head.weight"
    changes = [state[name].astype(np.float64) - REFERENCE[name] for state, _ in updates]
    norms = [float(np.linalg.norm(change)) for change in changes]
    weights = np.array([samples for _, samples in updates]) / sum(samples for _, samples in updates)
    directions = [change / norm if norm else change for change, norm in zip(changes, norms, strict=True)]
    expected = np.median(norms) * sum(w * d for w, d in zip(weights, directions, strict=True))
    np.testing.assert_allclose(result[name] - REFERENCE[name], expected, atol=2e-6 * max(1.0, *norms))


@pytest.mark.parametrize("make", RULES)
def test_every_order_gives_the_same_bits(make: Any) -> None:
    updates = [(update(seed, 10.0**-seed), seed + 1) for seed in range(4)]
    # Zeros of either sign are equal and must not betray who came first.
    for (state, _), zero in zip(updates, (0.0, -0.0, 0.0, -0.0), strict=True):
        state["norm.running_mean"] = np.array([zero, zero], np.float32)
    assert len({tuple(bits(fed(make(), order)).items()) for order in itertools.permutations(updates)}) == 1


@pytest.mark.parametrize("make", RULES)
def test_one_site_is_followed_and_a_bad_update_changes_nothing(make: Any) -> None:
    alone = update(3)
    accumulator = make()
    with pytest.raises(RejectedUpdate, match="not finite"):
        accumulator.add(update(1) | {"head.weight": np.full((3, 2), np.nan, np.float32)}, 3)
    assert accumulator.count == 0
    result = fed(accumulator, [(alone, 5)])
    bound = accumulator._bounds.get("parameters") if isinstance(accumulator, ClippedAverage) else None
    if bound is None:
        np.testing.assert_allclose(result["head.weight"], alone["head.weight"], rtol=1e-5)
    with pytest.raises(RuntimeError):
        accumulator.result()


def attacked(seed: int, attackers: int, factor: float) -> tuple[list[tuple[State, int]], list[tuple[State, int]]]:
    """Ten sites, some of which answer with an honest change times `factor`."""
    honest = [(update(seed + index), 10) for index in range(10 - attackers)]
    poisoned = [update(seed + 100 + index) for index in range(attackers)]
    return honest, [({name: _scaled(name, array, factor) for name, array in one.items()}, 10) for one in poisoned]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([-1.0, 10.0, -1000.0]))
def test_what_is_left_after_trimming_lies_among_the_honest(seed: int, factor: float) -> None:
    for attackers, trim in ((2, 0.2), (3, 0.5)):
        honest, poisoned = attacked(seed, attackers, factor)
        result = fed(TrimmedMean(REFERENCE, trim), honest + poisoned)["head.weight"]
        values = np.stack([state["head.weight"] for state, _ in honest])
        assert (values.min(axis=0) - 1e-6 <= result).all()
        assert (result <= values.max(axis=0) + 1e-6).all()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([10.0, -1000.0]))
def test_clipping_keeps_loud_sites_from_carrying_the_model_away(seed: int, factor: float) -> None:
    honest, poisoned = attacked(seed, 3, factor)
    norms = [float(np.linalg.norm(state["head.weight"] - REFERENCE["head.weight"])) for state, _ in honest]

    def change(accumulator: Accumulator) -> float:
        return float(np.linalg.norm(fed(accumulator, honest + poisoned)["head.weight"] - REFERENCE["head.weight"]))

    assert change(ClippedAverage(REFERENCE, 1000, {})) <= max(norms)
    assert change(ClippedAverage(REFERENCE, 1000, {"parameters": float(np.median(norms))})) <= np.median(norms)
    if factor == -1000.0:
        assert change(GroupAverage(REFERENCE, 1000)) > 10 * max(norms), "the attack does nothing to the plain mean"


def _scaled(name: str, array: NDArray[Any], factor: float) -> NDArray[Any]:
    if name != "head.weight":
        return array
    return (REFERENCE[name] + factor * (array - REFERENCE[name])).astype(np.float32)


def test_the_bound_of_a_round_is_the_last_rounds_median_norm_and_survives_a_restart() -> None:
    settings_ = AggregateSettings(rule="clipped", clip=2.0)
    aggregation = Aggregation(settings_)
    first = aggregation.accumulator(0, REFERENCE, 1000)
    fed(first, [(update(seed), 1) for seed in range(5)])
    aggregation.note(0, first)
    restored = Aggregation(settings_)
    restored.restore(aggregation.state())
    norms = [np.linalg.norm(update(seed)["head.weight"] - REFERENCE["head.weight"]) for seed in range(5)]
    for one in (aggregation, restored):
        second = one.accumulator(0, REFERENCE, 1000)
        assert isinstance(second, ClippedAverage)
        assert second._bounds["parameters"] == pytest.approx(2 * np.median(norms), rel=1e-6)
    unknown = aggregation.accumulator(1, REFERENCE, 1000)
    assert isinstance(unknown, ClippedAverage)
    assert unknown._bounds == {}


@pytest.mark.parametrize(("updates", "found"), [(2, 30_000), (3, 0), (4, 0), (5, 0)])
def test_of_three_updates_one_liar_is_left_out(updates: int, found: float) -> None:
    """Of two nobody can say who lies."""
    reference: State = {"weight": np.ones(1, np.float32)}
    accumulator = TrimmedMean(reference, 0.2)
    for value in [60_000.0] + [0.0] * (updates - 1):
        accumulator.add({"weight": np.array([value], np.float32)}, 1)
    assert accumulator.result()["weight"] == found


def test_a_share_that_a_computer_rounds_down_is_meant_as_it_is_written() -> None:
    accumulator = TrimmedMean({"weight": np.ones(1, np.float32)}, 0.29)
    for _ in range(100):
        accumulator.add({"weight": np.ones(1, np.float32)}, 1)
    assert accumulator.left_out == 29


def test_clipping_takes_what_the_mean_takes() -> None:
    reference: State = {"norm.running_var": np.full(2, 1e5, np.float32)}
    clipped = ClippedAverage(reference, 10, {})
    clipped.add({"norm.running_var": np.full(2, 3e5, np.float32)}, 1)
    np.testing.assert_allclose(clipped.result()["norm.running_var"], 3e5)


def test_an_update_that_finds_no_room_on_disk_is_refused_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    reference: State = {"weight": np.ones(3, np.float32)}
    accumulator = TrimmedMean(reference, 0.5)
    accumulator.add({"weight": np.full(3, 2, np.float32)}, 1)
    whole = accumulator._file
    assert whole is not None

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        def flush(self) -> None:
            raise OSError("no space left on device")

    monkeypatch.setattr(accumulator, "_file", Full())
    with pytest.raises(RejectedUpdate, match="no room"):
        accumulator.add({"weight": np.full(3, 9, np.float32)}, 1)
    monkeypatch.setattr(accumulator, "_file", whole)
    assert accumulator.count == 1
    np.testing.assert_array_equal(accumulator.result()["weight"], [2, 2, 2])


def test_a_group_in_which_nothing_moved_is_not_held_still_for_ever() -> None:
    aggregation = Aggregation(AggregateSettings(rule="clipped"))
    still = aggregation.accumulator(0, REFERENCE, 1000)
    fed(still, [(REFERENCE, 1)])
    aggregation.note(0, still)
    moved = fed(aggregation.accumulator(0, REFERENCE, 1000), [(update(1), 1)])
    np.testing.assert_allclose(moved["head.weight"], update(1)["head.weight"], rtol=1e-5)


@pytest.mark.parametrize(
    ("cap", "declared", "samples", "weight"),
    [
        (0.0, [10, 2**31 - 1], 2**31 - 1, 2**31 - 1),
        (1.0, [10, 2**31 - 1], 2**31 - 1, 10),
        (3.0, [10, 20, 30, 40, 2**31 - 1], 2**31 - 1, 90),
        (3.0, [10, 20, 30, 40, 2**31 - 1], 25, 25),
        (0.01, [10, 10], 10, 1),
    ],
)
def test_a_site_counts_for_no_more_than_the_cap(cap: float, declared: list[int], samples: int, weight: int) -> None:
    aggregation = Aggregation(AggregateSettings(cap=cap))
    most = aggregation.most(declared)
    assert aggregation.is_capped == (most is not None)
    assert (samples if most is None else min(samples, most)) == weight
    assert aggregation.most([]) is None


def test_a_group_that_is_no_more_leaves_no_norms() -> None:
    aggregation = Aggregation(AggregateSettings(rule="clipped"))
    for group in (0, 1):
        average = aggregation.accumulator(group, REFERENCE, 1000)
        average.add(update(1), 1)
        aggregation.note(group, average)
    aggregation.forget(1)
    aggregation.forget(7)
    assert set(aggregation.state()) == {"0"}


@pytest.mark.parametrize("key", ["aggregate.rule", "aggregate.cap"])
@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_guards_are_refused_where_updates_are_rescaled(method: str, key: str) -> None:
    value = "median" if key.endswith("rule") else 3.0
    with pytest.raises(SettingsError, match=f"{key} does not go with method = '{method}'"):
        settle(parse({"method": method, key: value}))


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_a_loud_site_in_a_whole_run(small_config: Any, rule: str) -> None:
    """Over the wire: one of six sites answers with its change times −30."""

    def loud(request: Message, reply: Message) -> Message:
        before, sent = wire.unpack_model(request.content), update_in(reply)
        state = {name: before[name] - 30 * (after - before[name]) for name, after in sent.state.items()}
        return altered(reply, wire.Update(state, sent.samples, sent.loss, sent.seconds))

    def loss(rule: str) -> float:
        config = small_config(method="fedavg", partition__scheme="iid", aggregate__rule=rule)
        record, _ = run(config, fault=on("train", 0, loud))
        return float(record.of(RoundFinished)[-1].overall.loss)

    assert loss(rule) < 2.4 < loss("mean")
