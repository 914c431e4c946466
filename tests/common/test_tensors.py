"""Arrays read where they lie: what the library takes is taken, and nothing else."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from common import wire
from common.foreign import Unusable, parse_tensors, view_tensors

ARRAYS = {
    "w": np.random.default_rng(0).random((3, 4), np.float32),
    "n": np.array(7),
    "none": np.zeros((0, 3), np.float32),
    "b": np.arange(5, dtype=np.uint8),
    "h": np.ones(3, np.float16),
    "s": np.array(2.5),
}


def test_what_is_read_is_what_was_written() -> None:
    found = view_tensors(save(ARRAYS, {"about": "this"}))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert not found[name].flags.writeable


def test_the_library_takes_the_same() -> None:
    data, rng = save(ARRAYS), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    refused = 0
    for _ in range(2000):
        altered = bytearray(data)
        for _ in range(rng.choice((1, 2))):
            altered[rng.randrange(header)] = rng.randrange(256)
        del altered[rng.choice((len(altered), rng.randrange(len(altered)))) :]
        ours, theirs = (read(reader, bytes(altered)) for reader in (view_tensors, parse_tensors))
        assert (ours is None) == (theirs is None), altered[:header]
        refused += ours is None
    assert refused > 500


def read(reader: object, data: bytes) -> dict[str, NDArray[np.generic]] | None:
    try:
        return reader(data)  # type: ignore[operator,no-any-return]
    except Unusable:
        return None


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"[]", "no header"),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "not what is in it"),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "not what is in it"),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "more than it declares"),
        (b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "of the shape"),
        (b'{"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', "of the shape"),
        (b'{"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}', "BF16"),
    ],
)
def test_a_header_that_lies_is_refused(header: bytes, says: str) -> None:
    with pytest.raises(Unusable, match=says):
        view_tensors(len(header).to_bytes(8, "little") + header + bytes(8))


def test_a_message_is_read_without_a_copy_of_its_model() -> None:
    state = {"w": np.ones(1_000_000, np.float32)}
    packed = wire.pack_arrays(state)
    tracemalloc.start()
    try:
        found = wire.unpack_arrays(packed)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found["w"], state["w"])
