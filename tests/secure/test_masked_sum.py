"""The sum of masked updates against the plain mean, and what is no sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.fixed_point import as_vector, limits_of
from common.secure.masks import add_masks
from common.secure.terms import MASKED
from server.aggregation import GroupAverage, MaskedSum, RejectedUpdate

REFERENCE: dict[str, NDArray[Any]] = {
    "conv.weight": np.full((3, 2), 0.25, np.float32),
    "norm.running_var": np.array([1.0, 300.0], np.float32),
    "norm.num_batches_tracked": np.array(5, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "wide": np.linspace(-1e3, 1e3, 5),
}
CAPACITY = 1000


def update(seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    made = {name: (rng.normal(size=array.shape) * 3).astype(array.dtype) for name, array in REFERENCE.items()}
    return {**made, "norm.num_batches_tracked": np.array(rng.integers(0, 10_000), np.int64)}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 200)), min_size=1, max_size=5))
def test_the_mean_is_the_plain_one_to_the_bit(updates: list[tuple[int, int]]) -> None:
    plain, masked = GroupAverage(REFERENCE, CAPACITY), MaskedSum(REFERENCE, CAPACITY)
    keys = [bytes([number]) * 32 for number in range(len(updates))]
    for (seed, samples), key in zip(updates, keys, strict=True):
        plain.add(update(seed), samples)
        vector = as_vector(update(seed), limits_of(REFERENCE), samples, CAPACITY)
        add_masks(vector.view(np.uint64), [key])
        masked.add({MASKED: vector}, samples)
    assert masked.count == 0
    add_masks(masked.hidden, [], keys)
    masked.unmasked()
    assert (masked.count, masked.samples) == (plain.count, plain.samples)
    mean, expected = masked.result(), plain.result()
    assert list(mean) == list(expected)
    assert all(mean[name].tobytes() == expected[name].tobytes() for name in expected)
    assert all(mean[name].dtype == expected[name].dtype for name in expected)


def taken(samples: int = 10) -> MaskedSum:
    total = MaskedSum(REFERENCE, CAPACITY)
    total.add({MASKED: as_vector(update(1), limits_of(REFERENCE), samples, CAPACITY)}, samples)
    return total


def test_masks_that_are_left_are_seen() -> None:
    total = taken()
    add_masks(total.hidden, [b"k" * 32])
    with pytest.raises(RejectedUpdate, match="none of such updates"):
        total.unmasked()
    assert total.count == 0
    with pytest.raises(RuntimeError, match="hidden"):
        total.result()


@pytest.mark.parametrize("place", range(5))
def test_a_sum_that_such_updates_cannot_have_is_none(place: int) -> None:
    """A term of a tensor is at most its limit, however many samples it is from."""
    total = taken()
    # conv.weight comes first, by name; its limit is 2**16 times 1.
    bound = 10 * 2 ** (62 - 10)
    total.hidden[place] = np.uint64(bound + 2)
    with pytest.raises(RejectedUpdate, match=r"the sum of conv\.weight"):
        total.unmasked()
    total = taken()
    total.hidden[place] = np.uint64(bound)
    total.unmasked()


@pytest.mark.parametrize(
    "state",
    [
        {}, {MASKED: np.zeros(3, np.int64)}, {MASKED: np.zeros(14, np.float64)}, {MASKED: np.zeros((14, 1), np.int64)},
        {MASKED: np.zeros(14, np.int64), "more": np.zeros(1)}, {"conv.weight": REFERENCE["conv.weight"]},
    ],
)  # fmt: skip
def test_an_update_of_another_form_is_rejected_and_changes_nothing(state: dict[str, NDArray[Any]]) -> None:
    total = taken()
    before = total.hidden.copy()
    with pytest.raises(RejectedUpdate, match="14 masked numbers"):
        total.add(state, 10)
    with pytest.raises(RejectedUpdate, match="more than the 1000"):
        total.add({MASKED: np.ones(14, np.int64)}, 991)
    with pytest.raises(RejectedUpdate, match="number of samples"):
        total.add({MASKED: np.ones(14, np.int64)}, 0)
    np.testing.assert_array_equal(total.hidden, before)
    assert total.samples == 10
