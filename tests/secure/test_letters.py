"""What members send each other, as it travels: whatever is not letters of members is refused before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from common import wire
from common.config import Config
from common.secure.terms import Terms
from common.wire.letters import read_terms


@given(st.dictionaries(st.integers(0, 30), st.binary(max_size=300), max_size=12))
def test_letters_come_back_as_they_were(letters: dict[int, bytes]) -> None:
    answer = wire.pack_lettered(wire.Lettered(letters, 1.5))
    assert wire.unpack_lettered(answer, 31) == wire.Lettered(letters, 1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"members": np.array([1, 0])}, {"members": np.array([1, 1])}, {"members": np.array([-1, 1])},
        {"members": np.array([0, 4])}, {"members": np.array([0])}, {"members": np.array([0.0, 1.0])},
        {"members": np.array([[0, 1]])}, {"lengths": np.array([1, 2])}, {"lengths": np.array([-1, 5])},
        {"lengths": np.array([2**62, 4 - 2**62])}, {"bytes": np.zeros(5, np.uint8)}, {"bytes": np.zeros(1, np.int64)},
        {"more": np.zeros(1)},
    ],
)  # fmt: skip
def test_what_is_no_letters_is_refused(changes: dict[str, Any]) -> None:
    arrays = {"members": np.array([0, 1]), "lengths": np.array([2, 2]), "bytes": np.zeros(4, np.uint8)}
    assert wire.unpack_letters(RecordDict({"letters": wire.pack_arrays(arrays)}), 4) == {0: b"\0\0", 1: b"\0\0"}
    with pytest.raises(wire.WireError):
        wire.unpack_letters(RecordDict({"letters": wire.pack_arrays(arrays | changes)}), 4)


def test_letters_that_are_too_many_are_not_even_read() -> None:
    content = RecordDict({"letters": wire.pack_arrays({"bytes": np.zeros(100_000, np.uint8)})})
    with pytest.raises(wire.WireError, match="more than 4 members can have"):
        wire.unpack_letters(content, 4)
    with pytest.raises(wire.WireError, match="no letters"):
        wire.unpack_letters(RecordDict(), 4)


def test_terms_come_back_as_they_were() -> None:
    task = wire.Task(Config().for_site(), 1, 2, terms=Terms(("a", "b"), 2**40, 7, b"m" * 32))
    assert wire.unpack_task(wire.pack_task(task)) == task
    assert wire.unpack_task(wire.pack_task(wire.Task(Config().for_site(), 1, 2))).terms is None


@pytest.mark.parametrize(
    "changes",
    [
        {"members": "a"}, {"members": ["b", "a"]}, {"members": ["a", "a"]}, {"members": [1, 2]}, {"members": [""]},
        {"capacity": 0}, {"capacity": -1}, {"capacity": 1.5}, {"capacity": 2**60}, {"most": -1}, {"most": True},
        {"sum of": "ab"}, {"sum of": "g" * 64}, {"sum of": b"x"},
    ],
)  # fmt: skip
def test_terms_that_are_none_are_refused(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"members": ["a", "b"], "capacity": 10, "most": 0, "sum of": "ab" * 32}
    assert read_terms(ConfigRecord(good)) == Terms(("a", "b"), 10, 0, b"\xab" * 32)
    with pytest.raises(wire.WireError):
        read_terms({**good, **changes})
