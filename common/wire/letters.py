"""What members of a secure sum send each other through the server, which only relays: bytes, by member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.secure.terms import Terms
from common.wire.records import VERSION, WireError, arrays_of, number, pack_arrays, refuse_others, scalars_of

LETTERS = "letters"
# The longest there are: keys with their certificate.
_LONGEST = 4096
MOST_MEMBERS = 10_000

Letters = dict[int, bytes]


@dataclass(frozen=True)
class Lettered:
    """What a site answered, and what it cost it."""

    letters: Letters
    seconds: float


def pack_letters(letters: Mapping[int, bytes]) -> ArrayRecord:
    """Write letters, by the member that they come from, or go to."""
    members = sorted(letters)
    return pack_arrays(
        {
            "members": np.array(members, np.int64),
            "lengths": np.array([len(letters[member]) for member in members], np.int64),
            "bytes": np.frombuffer(b"".join(letters[member] for member in members), np.uint8),
        }
    )


def unpack_letters(content: RecordDict, members: int) -> Letters:
    """Read letters of a sum that has so many members."""
    record = content.get(LETTERS)
    # Before it is read: more than there can be would take its memory first.
    if isinstance(record, ArrayRecord) and sum(len(array.data) for array in record.values()) > _most(members):
        raise WireError(f"its letters are more than {members} members can have")
    arrays = arrays_of(content, LETTERS)
    if {name: str(array.dtype) for name, array in arrays.items()} != _FORM or any(
        array.ndim != 1 for array in arrays.values()
    ):
        raise WireError("its letters are not members, lengths and bytes")
    who, lengths, text = arrays["members"], arrays["lengths"], arrays["bytes"].tobytes()
    if len(who) != len(lengths) or (np.diff(who) <= 0).any() or (len(who) and not 0 <= who[0] <= who[-1] < members):
        raise WireError(f"its letters are not those of some of {members} members")
    if ((lengths < 0) | (lengths > _LONGEST)).any() or lengths.sum() != len(text):
        raise WireError("its letters are cut off, or too long")
    ends = np.cumsum(lengths).tolist()
    return {
        member: text[end - length : end]
        for member, length, end in zip(who.tolist(), lengths.tolist(), ends, strict=True)
    }


_FORM = {"members": "int64", "lengths": "int64", "bytes": "uint8"}


def _most(members: int) -> int:
    return members * (_LONGEST + 16) + 10_000


def pack_lettered(answer: Lettered) -> RecordDict:
    """Write what a site answers in a secure sum."""
    told = MetricRecord({"version": VERSION, "seconds": answer.seconds})
    return RecordDict({"answer": told, LETTERS: pack_letters(answer.letters)})


def unpack_lettered(content: RecordDict, members: int) -> Lettered:
    """Read it, in a sum that has so many members."""
    metrics = scalars_of(content, "answer", MetricRecord)
    refuse_others(content, {"answer", LETTERS})
    return Lettered(unpack_letters(content, members), number(metrics, "seconds"))


# --- the terms of a sum, in a task ------------------------------------------------------------------------------------


def write_terms(config: ConfigRecord, terms: Terms) -> None:
    """Write the terms into a task."""
    config["members"] = list(terms.members)
    config["capacity"], config["most"] = terms.capacity, terms.most
    config["sum of"] = terms.model.hex()


def read_terms(config: Mapping[str, object]) -> Terms | None:
    """Read the terms of a task; None: it is no part of a secure sum."""
    if "members" not in config:
        return None
    members, model = config["members"], config.get("sum of")
    if not isinstance(members, list) or not all(isinstance(name, str) and 0 < len(name) <= 200 for name in members):
        raise WireError("members must be names")
    if members != sorted(set(members)) or len(members) > MOST_MEMBERS:
        raise WireError("members must be different names, in order")
    if not isinstance(model, str) or len(model) != 64 or set(model) - set("0123456789abcdef"):
        raise WireError("sum of must be a digest")
    capacity, most = (_whole(config, key) for key in ("capacity", "most"))
    if not capacity:
        raise WireError("capacity must be at least 1")
    return Terms(tuple(members), capacity, most, bytes.fromhex(model))


def told_alike(content: RecordDict) -> dict[str, str | int]:
    """What of a task every member of a sum must be told alike, as it was written: settings, rule, round, group."""
    config = scalars_of(content, "task", ConfigRecord)
    return {key: value for key in _ALIKE if isinstance(value := config.get(key), str | int)}


_ALIKE = ("version", "settings", "run", "rule", "round", "rounds", "group")


def _whole(config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    # A sum over many large sites has more samples than one site can.
    if type(value) is not int or not 0 <= value < 2**46:
        raise WireError(f"{key} must be a whole number, not {value!r}")
    return value
