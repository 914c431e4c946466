"""`events.jsonl`: events as lines of JSON, and lines as the events they were.

Both directions follow the types of the events' fields. What is read is foreign, however it came about: it is checked by
type, and a line that is no event is counted and left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ValidationError

from common.foreign import Unusable, parse_json
from server.history import run_directory
from server.history.events import (
    Event,
    GroupsFormed,
    RehearsalDone,
    RoundFinished,
    RunResumed,
    RunStarted,
    SitesPersonalised,
)

# Models and matrices have files of their own: they are not written, and so they are when they are read.
_ELSEWHERE: dict[str, Callable[[], Any]] = {
    "models": dict,
    "confusions": dict,
    "scores": dict,
    "distance": lambda: None,
    "views": dict,
}
# Stages of a round that come after its checkpoint.
_AFTER = ("evaluate", "personalise", "keep")
# JSON has neither; NaN is null.
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}

Kind = TypeVar("Kind")
Read = Callable[[Any], Any]


class InvalidEvent(ValueError):
    """What is not an event of this version; the message says where and why."""


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(event: Event, time: float) -> dict[str, Any]:
    """Return an event as JSON can hold it; `time` is when it was told, in seconds since the epoch."""
    return {"time": round(time, 3), "event": type(event).__name__, **_plain_fields(event)}


def _plain_fields(value: Any) -> dict[str, Any]:
    return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.name not in _ELSEWHERE}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# --- reading one event ------------------------------------------------------------------------------------------------


def decode(entry: Mapping[str, Any]) -> Event:
    """Return the event that `encode` wrote, without what has a file of its own, or raise `InvalidEvent`.

    A key that is missing takes the field's default, if it has one, and unknown keys are ignored: so logs of other
    versions stay readable where that is possible.
    """
    if not isinstance(entry, Mapping):
        raise InvalidEvent("it is not an object")
    name = entry.get("event")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidEvent(f"{name!r} is not an event")
    try:
        event: Event = _reader(kind)(entry)
        _check_names(event)
    except InvalidEvent as error:
        raise InvalidEvent(f"{name}: {error}") from None
    return event


def _check_names(event: Event) -> None:
    """Raise if an event contradicts itself where its readers look things up."""
    match event:
        case GroupsFormed(sites, labels) if len(sites) != len(labels):
            raise InvalidEvent(f"{len(labels)} labels for {len(sites)} sites")
        case RehearsalDone(outcome) if (
            len({len(outcome.ks), len(outcome.losses), len(outcome.low), len(outcome.high)}) > 1
            or outcome.k not in outcome.ks
        ):
            raise InvalidEvent("its losses are not those of its numbers of groups")
        case RoundFinished(sites=tested, labels=known) if not tested.keys() <= known.keys():
            raise InvalidEvent("a site was tested that is in no group")
        case SitesPersonalised(sites=tested, kept=kept) if not tested.keys() <= kept.keys():
            raise InvalidEvent("a site was tested that keeps nothing")


# Readers are made once per type: a log of many rounds holds millions of numbers.
@cache
def _reader(kind: Any) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _optional_reader(arguments)
    if origin is Literal:
        return _literal_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is dict:
        return _dict_reader(*arguments)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _settings_reader(kind)
    if is_dataclass(kind):
        return _fields_reader(kind)
    return _SCALARS[kind]


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidEvent(f"{value!r:.40} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidEvent("a number is too large") from None


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEvent(f"{value!r:.40} is not a whole number")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidEvent(f"{value!r:.40} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidEvent(f"{value!r:.40} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidEvent("a text cannot be written") from None
    return value


_SCALARS: dict[Any, Read] = {float: _number, int: _integer, bool: _truth, str: _text}


def _optional_reader(arguments: tuple[Any, ...]) -> Read:
    (kind,) = (one for one in arguments if one is not NoneType)
    read = _reader(kind)
    return lambda value: None if value is None else read(value)


def _literal_reader(arguments: tuple[Any, ...]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in arguments:
            raise InvalidEvent(f"{value!r:.40} is none of {', '.join(arguments)}")
        return value

    return read


def _tuple_reader(arguments: tuple[Any, ...]) -> Read:
    count = None if arguments[-1] is Ellipsis else len(arguments)
    # Nothing here has tuples of different types.
    item = _reader(arguments[0])

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            raise InvalidEvent(f"{value!r:.40} is not a list{'' if count is None else f' of {count}'}")
        return tuple(map(item, value))

    return read


def _dict_reader(key: Any, kind: Any) -> Read:
    item = _reader(kind)

    def named(text: Any) -> Any:
        if key is not int:
            return _text(text)
        # JSON has keys of text only. One spelling each, so that no two become one.
        if not isinstance(text, str) or not text.lstrip("-").isdecimal() or str(number := int(text)) != text:
            raise InvalidEvent(f"{text!r:.40} is not a whole number")
        return number

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise InvalidEvent(f"{value!r:.40} is not an object")
        try:
            return {named(name): item(one) for name, one in value.items()}
        except ValueError as error:
            raise InvalidEvent(str(error)) from None

    return read


def _fields_reader(kind: Any) -> Read:
    hints = get_type_hints(kind)
    known = [
        (one.name, _reader(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)
        if one.name not in _ELSEWHERE
    ]
    absent = {one.name: _ELSEWHERE[one.name] for one in fields(kind) if one.name in _ELSEWHERE}

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidEvent(f"{value!r:.40} is not an object")
        found = {name: empty() for name, empty in absent.items()}
        for name, item, needed in known:
            if name in value:
                try:
                    found[name] = item(value[name])
                except InvalidEvent as error:
                    raise InvalidEvent(f"{name}: {error}") from None
            elif needed:
                raise InvalidEvent(f"{name} is missing")
        return kind(**found)

    return read


def _settings_reader(kind: type[BaseModel]) -> Read:
    def read(value: Any) -> BaseModel:
        try:
            # As JSON, where a list may stand for a tuple and nothing else is converted.
            return kind.model_validate_json(json.dumps(value))
        except ValidationError as error:
            strange = [one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"]
            if len(strange) < error.error_count():
                raise InvalidEvent(f"settings: {error.errors()[0]['msg']}") from None
        # A setting that this version does not have says nothing to it.
        try:
            return kind.model_validate_json(json.dumps(_without(value, strange)))
        except ValidationError as error:
            raise InvalidEvent(f"settings: {error.errors()[0]['msg']}") from None

    return read


def _without(value: Any, paths: list[tuple[int | str, ...]]) -> Any:
    """Return a copy of nested objects without what the paths lead to."""
    copy = json.loads(json.dumps(value))
    for path in paths:
        place = copy
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
    return copy


# --- reading a log ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logged:
    """An event, and when it was told, in seconds since the epoch."""

    time: float
    event: Event


@dataclass(frozen=True)
class EventLog:
    """What happened in a run, as far as its log tells it: of a part that was done again, the last time.

    `unreadable` is how many lines of it could not be understood.
    """

    entries: tuple[Logged, ...] = ()
    unreadable: int = 0

    @property
    def events(self) -> list[Event]:
        """The events, in order."""
        return [entry.event for entry in self.entries]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of one type, in order."""
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]

    def resumed(self, round_number: int) -> EventLog:
        """Return what still holds of the log of a run that goes on after `round_number`."""
        return EventLog(tuple(_still_true(self.entries, round_number)), self.unreadable)


def read_events(directory: Path) -> EventLog:
    """Read the log of a run, finished or growing; an OSError says that there is none.

    When a run starts again everything before is forgotten. When it goes on after round r, what was told of later
    rounds is, and what came after the checkpoint of round r, its tests among that: it is told again.
    """
    lines = (directory / run_directory.EVENTS).read_bytes().split(b"\n")
    entries: list[Logged] = []
    unreadable = 0
    torn = False
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = _parsed(line)
        if entry is None:
            # Without a line break at its end the last line is still being written, or never will be.
            torn = place < len(lines) or not line.startswith(b"{")
            unreadable += torn
            continue
        # A boundary counts even where its settings cannot be read any more.
        name, number = entry.get("event"), entry.get("round_number")
        if name == RunStarted.__name__:
            entries, unreadable = [], 0
        elif name == RunResumed.__name__ and isinstance(number, int):
            entries = _still_true(entries, number)
            # A process that is killed may leave half a line; what it told is told again.
            unreadable -= torn
        torn = False
        try:
            entries.append(Logged(_time(entry.get("time")), decode(entry)))
        except InvalidEvent:
            unreadable += 1
    return EventLog(tuple(entries), unreadable)


def _still_true(entries: tuple[Logged, ...] | list[Logged], round_number: int) -> list[Logged]:
    kept = []
    for entry in entries:
        told_of = getattr(entry.event, "round_number", 0)
        again = isinstance(entry.event, RoundFinished) or getattr(entry.event, "stage", "") in _AFTER
        if told_of < round_number or (told_of == round_number and not again):
            kept.append(entry)
    return kept


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = parse_json(line)
    except Unusable:
        return None
    return entry if isinstance(entry, dict) else None


def _time(value: Any) -> float:
    time = _number(value)
    if not math.isfinite(time):
        raise InvalidEvent("it has no time")
    return time
