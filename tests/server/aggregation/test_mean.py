from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.aggregation import GroupAverage, RejectedUpdate

State = dict[str, NDArray[Any]]
Update = tuple[State, int]

REFERENCE: State = {
    "conv.weight": np.full((3, 2), 0.25, np.float32),
    "norm.running_mean": np.zeros(2, np.float32),
    "norm.running_var": np.array([1.0, 300.0], np.float32),
    "norm.num_batches_tracked": np.array(5, np.int64),
    "empty": np.zeros((0, 4), np.float32),
}
CAPACITY = 1000


def make_update(seed: int, magnitude: float = 1.0) -> State:
    rng = np.random.default_rng(seed)
    update: State = {
        name: (rng.normal(size=array.shape) * magnitude).astype(array.dtype) for name, array in REFERENCE.items()
    }
    return update | {"norm.num_batches_tracked": np.array(rng.integers(0, 10_000), np.int64)}


def slow_mean(updates: Sequence[Update]) -> State:
    total = sum(samples for _, samples in updates)
    return {
        name: np.sum([state[name].astype(np.float64) * samples for state, samples in updates], axis=0) / total
        for name in REFERENCE
    }


def average(updates: Sequence[Update], capacity: int = CAPACITY) -> State:
    group = GroupAverage(REFERENCE, capacity)
    for state, samples in updates:
        group.add(state, samples)
    return group.result()


def bits(state: State) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


update_lists = st.lists(
    st.tuples(st.integers(0, 2**32), st.sampled_from([1e-6, 1e-2, 1.0, 1e3]), st.integers(1, 200)),
    min_size=1,
    max_size=5,
).map(lambda items: [(make_update(seed, magnitude), samples) for seed, magnitude, samples in items])


@given(update_lists)
def test_average_is_the_weighted_mean(updates: list[Update]) -> None:
    mean, expected = average(updates), slow_mean(updates)
    assert list(mean) == list(REFERENCE)
    for name, array in REFERENCE.items():
        assert mean[name].dtype == array.dtype
        assert mean[name].shape == array.shape
        if name == "norm.num_batches_tracked":
            assert mean[name] == math.floor(expected[name] + 0.5)
        else:
            scale = max(1.0, float(np.abs(array).max(initial=0)))
            np.testing.assert_allclose(mean[name], expected[name], rtol=1e-6, atol=2.0**-30 * scale)


@settings(max_examples=25)
@given(update_lists)
def test_every_order_gives_the_same_bits(updates: list[Update]) -> None:
    expected = bits(average(updates))
    for order in itertools.permutations(updates):
        assert bits(average(order)) == expected


def test_terms_that_cancel_leave_the_same_bits_in_every_order() -> None:
    """A running sum in float64 fails here: what is small survives only if the large terms cancel first."""
    reference: State = {"weight": np.ones(1, np.float32)}
    means = set()
    for order in itertools.permutations([6e4, -6e4, 1.2345678e-7, -5e4, 5e4]):
        group = GroupAverage(reference, 10)
        for value in order:
            group.add({"weight": np.array([value], np.float32)}, 1)
        means.add(group.result()["weight"].tobytes())
    assert len(means) == 1


def test_a_large_tensor_is_averaged_over_all_chunks() -> None:
    reference: State = {"weight": np.zeros((3, 33_333), np.float32)}
    values = np.arange(99_999, dtype=np.float32).reshape(3, 33_333) / 2
    group = GroupAverage(reference, 8)
    group.add({"weight": values}, 1)
    group.add({"weight": -values}, 3)
    np.testing.assert_array_equal(group.result()["weight"], -values / 2)


def test_arrays_of_any_layout_are_averaged() -> None:
    reference: State = {"weight": np.zeros((3, 4), np.float32)}
    values = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    group = GroupAverage(reference, 2)
    group.add({"weight": values}, 2)
    np.testing.assert_array_equal(group.result()["weight"], values)


def test_the_largest_values_allowed_do_not_overflow() -> None:
    largest = np.nextafter(np.float32(2**16), np.float32(0))
    reference: State = {"weight": np.ones(2, np.float32)}
    group = GroupAverage(reference, 1023)
    for samples in (511, 512):
        group.add({"weight": np.array([largest, -largest])}, samples)
    np.testing.assert_array_equal(group.result()["weight"], [largest, -largest])


def test_integers_are_averaged_exactly_and_rounded_half_up() -> None:
    reference: State = {"count": np.zeros(3, np.int64)}
    group = GroupAverage(reference, 2)
    group.add({"count": np.array([1, -1, 2**62 + 1])}, 1)
    group.add({"count": np.array([2, -2, 2**62 + 4])}, 1)
    np.testing.assert_array_equal(group.result()["count"], [2, -1, 2**62 + 3])


def changed(name: str, value: float) -> Callable[[State], State]:
    def change(state: State) -> State:
        array = state[name].copy()
        array.flat[-1] = value
        return state | {name: array}

    return change


BAD_STATES: list[tuple[Callable[[State], State], str]] = [
    (changed("conv.weight", math.nan), "conv.weight holds values that are not finite"),
    (changed("conv.weight", -math.inf), "conv.weight holds values that are not finite"),
    (changed("norm.running_var", math.inf), "norm.running_var holds"),
    (changed("conv.weight", 2.0**16), "conv.weight blew up"),
    (changed("conv.weight", -(2.0**16)), "conv.weight blew up"),
    (changed("norm.running_var", 2.0**25), r"norm.running_var blew up: .* 2\*\*25"),
    (lambda state: state | {"conv.weight": state["conv.weight"].T}, "conv.weight is float32"),
    (lambda state: state | {"conv.weight": state["conv.weight"].astype(np.float64)}, "conv.weight is float64"),
    (lambda state: state | {"norm.num_batches_tracked": np.array(5.0)}, "norm.num_batches_tracked is float64"),
    (lambda state: {name: array for name, array in state.items() if name != "empty"}, "lacks empty"),
    (lambda state: state | {"extra": np.zeros(1, np.float32)}, "no extra"),
    (lambda state: {name.upper(): array for name, array in state.items()}, "lacks"),
]


@pytest.mark.parametrize(("change", "message"), BAD_STATES)
def test_a_bad_update_is_refused_and_leaves_no_trace(change: Callable[[State], State], message: str) -> None:
    good = [(make_update(1), 3), (make_update(2), 4)]
    group = GroupAverage(REFERENCE, CAPACITY)
    for place, (state, samples) in enumerate(good):
        with pytest.raises(RejectedUpdate, match=message):
            group.add(change(make_update(9)), 5)
        assert group.count == place
        group.add(state, samples)
    assert (group.count, group.samples) == (2, 7)
    assert bits(group.result()) == bits(average(good))


@pytest.mark.parametrize("samples", [0, -3, True, 2.0, "4", None, math.nan, CAPACITY + 1, 10**30])
def test_a_bad_number_of_samples_is_refused(samples: Any) -> None:
    group = GroupAverage(REFERENCE, CAPACITY)
    with pytest.raises(RejectedUpdate, match="samples"):
        group.add(make_update(1), samples)
    group.add(make_update(2), 10)
    assert (group.count, group.samples) == (1, 10)
    assert bits(group.result()) == bits(average([(make_update(2), 10)]))


def test_a_sound_update_passes_the_screening() -> None:
    group = GroupAverage(REFERENCE, CAPACITY)
    group.add(make_update(1), 1)
    group.add(changed("norm.running_var", 2.0**24)(make_update(1)), 1)
    assert group.count == 2


def test_the_capacity_bounds_the_sum_of_the_samples() -> None:
    group = GroupAverage(REFERENCE, 10)
    group.add(make_update(1), 6)
    with pytest.raises(RejectedUpdate, match="5 samples on top of 6 are more than the 10 expected"):
        group.add(make_update(2), 5)
    group.add(make_update(2), 4)
    assert group.samples == 10


def test_an_average_is_made_once() -> None:
    group = GroupAverage(REFERENCE, CAPACITY)
    with pytest.raises(RuntimeError, match="no updates"):
        group.result()
    group.add(make_update(1), 1)
    group.result()
    with pytest.raises(RuntimeError, match="closed"):
        group.result()
    with pytest.raises(RuntimeError, match="closed"):
        group.add(make_update(1), 1)


def test_a_reference_that_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(ValueError, match="only floats and integers"):
        GroupAverage({"name": np.array(["a"])}, 1)
    with pytest.raises(ValueError, match="not finite"):
        GroupAverage({"weight": np.array([np.nan])}, 1)
    with pytest.raises(ValueError, match="capacity"):
        GroupAverage(REFERENCE, 0)
