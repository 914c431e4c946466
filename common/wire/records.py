"""Arrays and scalars of Flower records, each checked as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors.numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from common.foreign import Unusable, view_tensors
from common.state import State
from common.tensors import contiguous

VERSION = 5

# How the names of records begin that travel beside a model.
EXTRA = "extra "

MEGABYTE = 1_000_000
# What a message may hold beside its arrays: scalars, names, and how they are written.
BESIDE_ARRAYS = 16 * MEGABYTE
MAX_REASON = 500

_DTYPES = ("float32", "float64", "int64", "uint8")
_PACKED = "safetensors"
_LONGEST_HEADER = 1_000_000  # bytes; about a hundred for a tensor, which take thirty times that when they are read
_LONGEST_NAME = 200

Scalars = Mapping[str, object]


class WireError(ValueError):
    """A message that does not say what it should; the text names the fault."""


class Refusal(WireError):
    """A site says why it does not answer. `passing`: it may answer the same question in a while."""

    def __init__(self, reason: str, *, passing: bool) -> None:
        super().__init__(reason)
        self.passing = passing


def plain_text(value: object) -> str:
    """Foreign text, cut and without control characters: it is shown in terminals and logs."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value)[:MAX_REASON])


def size(content: RecordDict) -> int:
    """Bytes of all arrays in a message."""
    return sum(_sizes(content).values())


def check_size(content: RecordDict, limit_mb: int) -> None:
    """Raise if the arrays of a message are larger than agreed; the record with the most of them is named."""
    sizes = _sizes(content)
    total = sum(sizes.values())
    if total > limit_mb * MEGABYTE:
        largest = plain_text(max(sizes, key=sizes.__getitem__)[:_LONGEST_NAME])
        raise WireError(
            f"{total / MEGABYTE:.1f} MB of arrays, the most of them in {largest!r}; "
            f"at most {limit_mb} MB are allowed (round.max_message_mb)"
        )


def _sizes(content: RecordDict) -> dict[str, int]:
    return {
        key: sum(len(array.data) for array in record.values())
        for key, record in content.items()
        if isinstance(record, ArrayRecord)
    }


def check_record_size(content: RecordDict, key: str, most: int | None) -> None:
    """Raise if a record has more bytes of arrays than can be in it; None: any number can."""
    record = content.get(key)
    if most is None or not isinstance(record, ArrayRecord):
        return
    total = sum(len(array.data) for array in record.values())
    if total > most + _LONGEST_HEADER:
        raise WireError(f"{plain_text(key)} has {total} bytes where {most} are expected")


def refuse_others(content: RecordDict, known: set[str], *, extras: bool = False) -> None:
    """Raise if a message carries a record that nobody asked for."""
    for key in content:
        if key not in known and not (extras and key.startswith(EXTRA)):
            raise WireError(f"it carries {plain_text(key)!r}, which nobody asked for")


# --- arrays ----------------------------------------------------------------------------------------------------


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Serialise named arrays, all as one for Flower.

    It sends, stores and books every array by itself, twice: a network of 60 tensors would be 120 requests per site and
    stage, each with a transaction of the SuperLink's database, which twenty sites then lock for each other.
    """
    return as_record(safetensors.numpy.save({name: contiguous(array) for name, array in arrays.items()}))


def as_record(data: bytes) -> ArrayRecord:
    """Return serialised arrays as a record of a message."""
    return ArrayRecord({_PACKED: Array("uint8", (len(data),), _PACKED, data)})


def bytes_in(record: ArrayRecord) -> bytes | None:
    """Return the serialised arrays of a record; None: it is none of ours."""
    return record[_PACKED].data if set(record) == {_PACKED} else None


def arrays_of(content: RecordDict, key: str, *also: str) -> State:
    """Read the named arrays of one record of a message, of the usual types, and of those that are `also` expected."""
    # Not `content.array_records`: that view refers back to the content and keeps a whole reply alive until the next
    # garbage collection.
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise WireError(f"the message carries no {plain_text(key)}")
    return unpack_arrays(record, *also)


def unpack_arrays(record: ArrayRecord, *also: str) -> State:
    """Read named arrays where they lie: a model is held once, and cannot be written to."""
    if set(record) != {_PACKED}:
        raise WireError("its arrays are not packed as agreed: update the older side")
    data = record[_PACKED].data
    try:
        arrays = view_tensors(data, _LONGEST_HEADER)
    except Unusable as error:
        raise WireError(f"its arrays are truncated or not readable: {plain_text(error)}") from None
    for name, array in arrays.items():
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise WireError(f"array {plain_text(name[:_LONGEST_NAME])!r} has no proper name")
        if array.dtype not in (*_DTYPES, *also):
            raise WireError(f"array {name!r} is {array.dtype}, not one of {', '.join((*_DTYPES, *also))}")
    return arrays


# --- scalars ---------------------------------------------------------------------------------------------------


def scalars_of(content: RecordDict, key: str, kind: type[ConfigRecord] | type[MetricRecord]) -> Scalars:
    """Return the scalars of one record of a message, of the right version; a refusal in their place is raised."""
    record = content.get(key)
    if not isinstance(record, kind):
        refusal = content.get("refusal")
        if isinstance(refusal, ConfigRecord):
            reason = plain_text(refusal.get("reason", "no reason given"))
            raise Refusal(reason, passing=refusal.get("passing") is True)
        raise WireError(f"the message carries no {key!r} record")
    if (version := record.get("version")) != VERSION:
        raise WireError(f"wire format version {version!r}, this side speaks {VERSION}: update the older side")
    return record


def text(record: Scalars, key: str) -> str:
    """Read a text."""
    value = record.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key} must be text, not {value!r}")
    return value


def truth(record: Scalars, key: str) -> bool:
    """Read a truth value; what is not there is false."""
    value = record.get(key, False)
    if not isinstance(value, bool):
        raise WireError(f"{key} must be true or false, not {value!r}")
    return value


def count(record: Scalars, key: str, at_least: int = 0) -> int:
    """Read a whole number."""
    value = record.get(key)
    if type(value) is not int or not at_least <= value < 2**31:
        raise WireError(f"{key} must be a whole number ≥ {at_least}, not {value!r}")
    return value


def counts(record: Scalars, key: str, most: int) -> tuple[int, ...]:
    """Read a list of whole numbers, at most so many."""
    values = record.get(key, [])
    if not isinstance(values, list) or len(values) > most:
        raise WireError(f"{key} must be a list of at most {most} whole numbers")
    if not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise WireError(f"{key} must be whole numbers ≥ 0")
    return tuple(values)


def number(record: Scalars, key: str, at_most: float = 1e15) -> float:
    """Read a number, bounded because sums of foreign numbers must not overflow."""
    value = record.get(key)
    if type(value) not in (int, float) or not 0 <= value <= at_most:  # type: ignore[operator]
        raise WireError(f"{key} must be a number from 0 to {at_most:g}, not {value!r}")
    return float(value)  # type: ignore[arg-type]
