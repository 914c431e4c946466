"""What is computed once: the same values as if it were computed every time, within its memory."""

from __future__ import annotations

import gc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from client.held import Held, OfArrays


def rows(key: int, count: int = 10) -> np.ndarray:
    return np.full(count, key, np.float32)


@given(st.lists(st.integers(0, 12), max_size=80), st.integers(0, 5))
def test_whatever_is_asked_for_is_there_and_memory_is_kept(asked: list[int], fit: int) -> None:
    held = Held(fit * rows(0).nbytes)
    for key in asked:
        found = held.get(key, lambda key=key: rows(key))  # type: ignore[misc]
        np.testing.assert_array_equal(found, rows(key))
        assert not found.flags.writeable
        # One that is larger than all of the memory is held alone.
        assert len(held) <= max(fit, 1)


def test_sites_in_turn_are_found_again_though_not_all_fit() -> None:
    held, made = Held(50 * rows(0).nbytes), 0

    def make() -> np.ndarray:
        nonlocal made
        made += 1
        return rows(0)

    for _ in range(20):
        for key in range(60):
            held.get(key, make)
    # Who lets go of the oldest finds none of them: 1,200.
    assert made < 600


def test_a_value_belongs_to_its_array_and_its_key() -> None:
    known: OfArrays[float] = OfArrays()
    one, other = rows(1), rows(2)
    for array in (one, other):
        array.flags.writeable = False
    assert known.get(one, "sum", lambda: float(one.sum())) == 10
    assert known.get(other, "sum", lambda: float(other.sum())) == 20
    assert known.get(one, "sum", lambda: 0.0) == 10
    assert known.get(one, "mean", lambda: float(one.mean())) == 1


def test_nothing_is_remembered_of_what_may_change_or_is_gone() -> None:
    known: OfArrays[float] = OfArrays()
    array = rows(1)
    assert known.get(array, None, lambda: 1.0) == 1
    assert known.get(array, None, lambda: 2.0) == 2
    array.flags.writeable = False
    assert known.get(array, None, lambda: 3.0) == 3
    assert len(known) == 1
    del array
    gc.collect()
    assert len(known) == 0
