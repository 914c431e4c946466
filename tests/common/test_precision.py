"""Updates in fewer bytes: how far off, that nothing is lost for good, and what no site may send."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from common import wire
from common.config import Precision
from common.state import State
from common.wire.precision import BLOCK

# As a part of the largest change of a block: half a step, and float16's ten bits.
BOUNDS: dict[Precision, float] = {"int8": 0.5 / 127, "float16": 2.0**-11}
SHORT = pytest.mark.parametrize("precision", list(BOUNDS))
Values = NDArray[np.float32]


def floats(most: float) -> st.SearchStrategy[Values]:
    shape = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8) | st.just((2, BLOCK + 1))
    return shape.flatmap(lambda one: arrays(np.float32, one, elements=st.floats(-most, most, width=32)))


def sent_and_read(change: Values, precision: Precision, unsaid: State | None = None) -> tuple[State, State, State]:
    before = {"w": np.zeros_like(change)}
    sent, left = wire.shorten({"w": change}, before, unsaid or {}, precision)
    return sent, wire.lengthen(sent, before, precision), left


@SHORT
@given(st.data())
def test_what_is_read_is_near_what_was_sent(precision: Precision, data: st.DataObject) -> None:
    change = data.draw(floats(2.0**120))
    _, read, left = sent_and_read(change, precision)
    assert read["w"].dtype == np.float32
    assert read["w"].shape == change.shape
    # The smallest numbers there are have no steps between them.
    allowed = BOUNDS[precision] * 1.001 * block_maxima(change) + 1e-42
    assert (np.abs(read["w"].astype(np.float64) - change).reshape(-1) <= allowed).all()
    np.testing.assert_array_equal(left["w"], change - read["w"])


def block_maxima(values: Values) -> NDArray[np.float64]:
    flat = np.abs(values.reshape(-1).astype(np.float64))
    maxima = [flat[start : start + BLOCK].max() for start in range(0, flat.size, BLOCK)]
    return np.repeat(maxima, BLOCK)[: flat.size]


@SHORT
def test_what_is_not_said_now_is_said_later(precision: Precision) -> None:
    """Each update alone is off by up to half a step; all of them together are off by no more than one."""
    rng = np.random.default_rng(0)
    changes = [rng.normal(0, 0.01, (30, 30)).astype(np.float32) for _ in range(200)]
    told, alone, unsaid = np.zeros((2, 30, 30)), np.zeros((30, 30)), State()
    for change in changes:
        _, read, unsaid = sent_and_read(change, precision, unsaid)
        told[0] += read["w"]
        alone += sent_and_read(change, precision)[1]["w"]
    true = np.sum(changes, axis=0, dtype=np.float64)
    step = 0.06 * 2 * BOUNDS[precision]
    assert np.abs(told[0] - true).max() < step
    assert np.abs(alone - true).max() > 3 * np.abs(told[0] - true).max(), "without what was left unsaid errors add up"


@SHORT
def test_a_change_too_small_for_a_step_is_said_in_the_end(precision: Precision) -> None:
    """Beside one large change a small one is rounded away, again and again, unless it is remembered."""
    change = np.array([1.0, 0.4 * BOUNDS[precision] if precision == "int8" else 1e-9], np.float32)
    unsaid: State = {}
    told = 0.0
    for _ in range(1000):
        _, read, unsaid = sent_and_read(change, precision, unsaid)
        told += float(read["w"][1])
    assert told == pytest.approx(1000 * change[1], rel=0.06)
    assert not float(sent_and_read(change, precision)[1]["w"][1])


def test_int8_is_a_quarter_of_the_bytes_and_float16_a_half() -> None:
    change = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    sizes = {
        precision: sum(array.nbytes for array in sent_and_read(change, precision)[0].values()) for precision in BOUNDS
    }
    assert sizes["int8"] == change.nbytes // 4 + 4 * change.size // BLOCK
    assert sizes["float16"] == change.nbytes // 2 + 4 * change.size // BLOCK


@SHORT
def test_what_is_measured_or_counted_travels_as_it_is(precision: Precision) -> None:
    after = {
        "bn.running_var": np.array([1e-12, 5.0], np.float32),
        "bn.num_batches_tracked": np.array(7),
        "w": np.array([1.0], np.float32),
    }
    before = {name: np.zeros_like(array) for name, array in after.items()}
    sent, left = wire.shorten(after, before, {}, precision)
    assert set(left) == {"w"}
    read = wire.lengthen(sent, before, precision)
    for name, array in after.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


def hostile(**changes: NDArray[np.generic] | None) -> State:
    sent, _, _ = sent_and_read(np.ones((2, 3), np.float32), "int8")
    return {name: array for name, array in (sent | changes).items() if array is not None}  # type: ignore[operator]


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(wire.WireError, match="scales of w hold values that are not finite, or below 0"):
        wire.lengthen(hostile(**{"scales of w": np.array([scale], np.float32)}), {"w": np.ones((2, 3), "f")}, "int8")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"w": np.ones((2, 3), np.float32)}, r"w is float32\(2, 3\), not int8\(2, 3\)"),
        ({"w": np.ones((2, 3), np.float16)}, "wire.precision"),
        ({"w": np.ones((200, 300), np.int8)}, r"not int8\(2, 3\)"),
        ({"w": None}, "lacks w"),
        ({"scales of w": None}, "lacks the scales of w"),
        ({"scales of w": np.ones(2, np.float32)}, r"not float32\(1,\)"),
        ({"scales of w": np.ones(1, np.float64)}, r"not float32\(1,\)"),
        ({"scales of v": np.ones(1, np.float32)}, "no scales of v"),
        ({"v": np.ones(1, np.int8)}, "no v"),
    ],
)
def test_what_has_another_form_is_refused(changes: dict[str, NDArray[np.generic]], says: str) -> None:
    with pytest.raises(wire.WireError, match=says):
        wire.lengthen(hostile(**changes), {"w": np.ones((2, 3), np.float32)}, "int8")


def test_types_that_nobody_asked_for_are_refused_as_ever() -> None:
    packed = wire.pack_arrays({"w": np.ones(3, np.int8)})
    with pytest.raises(wire.WireError, match="int8, not one of"):
        wire.unpack_arrays(packed)
    assert wire.unpack_arrays(packed, "int8")["w"].dtype == np.int8


@SHORT
@given(st.data())
def test_whatever_a_site_makes_of_itself_is_written_without_a_warning(
    precision: Precision, data: st.DataObject
) -> None:
    """Infinite, not a number, too large: it leaves as it is, and is refused by its scales or as a number."""
    shape = data.draw(array_shapes(max_dims=2, max_side=20))
    after = {"w": data.draw(arrays(np.float32, shape, elements=st.floats(width=32)))}
    before = {"w": data.draw(arrays(np.float32, shape, elements=st.floats(width=32, allow_infinity=False)))}
    with np.errstate(all="raise", under="ignore"):
        sent, _ = wire.shorten(after, before, {}, precision)
        try:
            read = wire.lengthen(sent, before, precision)["w"]
        except wire.WireError:
            return
    assert read.dtype == np.float32
