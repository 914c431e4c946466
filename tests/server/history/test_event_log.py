"""Events are read back as what they were, and what is no event is counted and left out."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import Config, parse
from common.metrics import Metrics
from common.site_card import SiteCard
from server.clustering import Rehearsed
from server.history.event_log import EventLog, InvalidEvent, decode, encode, read_events
from server.history.events import (
    Audience,
    CheckpointFailed,
    Event,
    GroupsFormed,
    MemoryLost,
    RehearsalDone,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunResumed,
    RunStarted,
    SiteCleared,
    SiteLeftOut,
    SitesMoved,
    SitesPersonalised,
    Solved,
)
from server.history.ledger import evidence_entry, rulings
from server.listeners.journal import Journal
from server.migration import Evidence

KINDS = get_args(Event)
CONFIGS = [
    Config(),
    parse({"method": "cfl", "sites": 6, "data.classes": "a,b", "track": "tensorboard"}),
    parse({"rounds": 10, "drift": '[{"kind": "swap", "at": 0.5, "sites": ["000", "001"]}]'}),
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
GOOD = Metrics(0.5, 0.25, math.nan, math.inf, 7)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of a type may hold."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (one,) = (one for one in arguments if one is not NoneType)
        # JSON has one null: where None is possible, it is what NaN becomes.
        numbers = st.floats(allow_nan=False)
        return st.none() | (numbers if one is float else values(one))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        items = values(arguments[0])
        if arguments[-1] is Ellipsis:
            return st.lists(items, max_size=3).map(tuple)
        return st.tuples(*[items] * len(arguments))
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if is_dataclass(kind):
        return events(kind)
    plain = {float: st.floats(), int: st.integers(), bool: st.booleans(), str: NAMES, Config: st.sampled_from(CONFIGS)}
    return plain[kind]


def events(kind: Any) -> st.SearchStrategy[Any]:
    """Any event of a type, without what has a file of its own."""
    elsewhere: dict[str, Any] = {
        "models": st.just({}),
        "confusions": st.just({}),
        "scores": st.just({}),
        "distance": st.none(),
    }
    elsewhere["views"] = st.just({})
    hints = get_type_hints(kind)
    parts = {
        one.name: elsewhere[one.name] if one.name in elsewhere else values(hints[one.name]) for one in fields(kind)
    }
    return st.builds(kind, **parts).map(consistent)


def consistent(event: Any) -> Any:
    """Sites that are named in one field are named in those that go with it."""
    match event:
        case GroupsFormed():
            return replace(event, labels=tuple(range(len(event.sites))))
        case RehearsalDone():
            numbers = (*event.outcome.losses, 0.5)
            ks = tuple(range(1, len(numbers) + 1))
            return replace(event, outcome=Rehearsed(ks, numbers, numbers, numbers, ks[-1]))
        case RoundFinished():
            return replace(event, labels=event.labels | dict.fromkeys(event.sites, 0))
        case SitesPersonalised():
            return replace(event, kept=event.kept | dict.fromkeys(event.sites, "group"))
    return event


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, NaN to NaN."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def through_json(event: Event) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(json.dumps(encode(event, 1.0), allow_nan=False))
    return entry


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_an_event_is_read_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    entry = through_json(event)
    assert same(decode(entry), event)
    assert same(decode(entry | {"of a later version": [1]}), event)
    del entry[data.draw(st.sampled_from(sorted(entry.keys() - {"time"})))]
    with suppress(InvalidEvent):
        assert isinstance(decode(entry), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_damage_to_an_event_is_an_invalid_event_or_does_not_matter(kind: Any, data: st.DataObject) -> None:
    entry = through_json(data.draw(events(kind)))
    junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
    key = data.draw(st.sampled_from(sorted(entry)))
    damaged = entry | {key: data.draw(junk | st.dictionaries(st.text(), st.none(), max_size=2))}
    with suppress(InvalidEvent):
        assert isinstance(decode(damaged), KINDS)


def test_what_has_a_file_of_its_own_is_not_in_the_log() -> None:
    models = {0: {"weight": np.zeros(3, np.float32)}}
    finished = RoundFinished(1, GOOD, {0: GOOD}, {"a": GOOD}, {"a": 0}, 0.5, 0.5, 0.1, models)
    assert "models" not in encode(finished, 1.0)
    assert same(decode(through_json(finished)), replace(finished, models={}))
    formed = GroupsFormed(("a", "b"), (0, 1), np.zeros((2, 2)), {2: 0.5}, (1, 2), 0.1)
    assert decode(through_json(formed)) == replace(formed, distance=None)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    event = RoundTrained(np.int64(2), np.float64(0.25), {"a": np.int64(1)})  # type: ignore[arg-type]
    assert same(decode(through_json(event)), RoundTrained(2, 0.25, {"a": 1}))


def test_what_is_not_defined_is_null_and_an_infinite_condition_stays_one() -> None:
    entry = through_json(Solved(0.5, (4, 2), {"x": math.nan}, {"a": 1}, {"a": math.inf}))
    assert (entry["validation"], entry["conditions"]) == ({"x": None}, {"a": "Infinity"})
    solved = decode(entry)
    assert isinstance(solved, Solved)
    assert solved.conditions == {"a": math.inf}


def test_logs_of_other_versions_are_read_where_that_is_possible() -> None:
    entry = through_json(RunStarted(Config(seed=3), "a stamp"))
    del entry["stamp"], entry["config"]["round"]["deadline"]
    entry["config"]["of a later version"] = 1
    entry["config"]["train"]["as well"] = {"a": 2}
    assert decode(entry) == RunStarted(Config(seed=3))
    cleared = SiteCleared(1, "a", 0, Evidence(0.1, {1: 0.2}, 3.0))
    entry = through_json(cleared)
    del entry["evidence"]["reason"]
    assert decode(entry) == cleared


ROUND = through_json(RoundFinished(1, GOOD, {0: GOOD}, {"a": GOOD}, {"a": 0}, 0.5, 0.5, 0.1, {}))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ([1, 2], "not an object"),
        ({}, "None is not an event"),
        ({"event": ["RunEnded"]}, "is not an event"),
        ({"event": "SiteMoved"}, "'SiteMoved' is not an event"),
        (ROUND | {"round_number": True}, "RoundFinished: round_number: True is not a whole number"),
        (ROUND | {"round_number": 1.0}, "not a whole number"),
        (ROUND | {"train_loss": "0.1"}, "train_loss: '0.1' is not a number"),
        (ROUND | {"train_loss": 10**400}, "too large"),
        (ROUND | {"labels": {"b": 0}}, "in no group"),
        (ROUND | {"labels": {"\ud800": 0}}, "cannot be written"),
        (ROUND | {"groups": {"01": ROUND["overall"]}}, "'01' is not a whole number"),
        (ROUND | {"groups": {"9" * 5000: ROUND["overall"]}}, "integer string conversion"),
        (ROUND | {"groups": {"0": {"accuracy": 1}}}, "macro_f1 is missing"),
        ({"event": "RunEnded", "outcome": "over", "reason": ""}, "'over' is none of finished, interrupted, failed"),
        ({"event": "RunStarted", "config": {"sites": "many"}}, "config: settings: "),
        ({"event": "RunStarted", "config": {"sites": "many", "x": 1}}, "config: settings: "),
        ({"event": "SiteEnrolled", "card": {"name": "a"}, "late": False}, "card: train_samples is missing"),
        (through_json(Solved(0.5, (4, 2), {}, {}, {})) | {"hidden": [4]}, "not a list of 2"),
    ],
)
def test_what_is_no_event_is_named(entry: Any, why: str) -> None:
    with pytest.raises(InvalidEvent, match=r".*") as caught:
        decode(entry)
    assert why in str(caught.value)


# --- a whole log ------------------------------------------------------------------------------------------------------


def finished(number: int) -> RoundFinished:
    return RoundFinished(number, GOOD, {}, {}, {"a": 0}, 0.5, 0.5, 0.1, {})


def resumed(number: int) -> RunResumed:
    return RunResumed(Config(), "stamp", number, (SiteCard("a", 1, 1, (1,), 0, ()),), {"a": 0}, {})


def told(directory: Path, *story: Event | str) -> EventLog:
    """The log of a story in which text stands for a line as it is."""
    for part in story:
        if isinstance(part, str):
            with (directory / "events.jsonl").open("a") as file:
                file.write(part)
        else:
            Journal(directory).hear(part)
    return read_events(directory)


def test_a_log_is_read_with_its_times_in_order(tmp_path: Path) -> None:
    story = (RunStarted(Config(), "x"), RoundTrained(1, 0.5, {"a": 0}), MemoryLost(1, "a"), RunEnded("finished", ""))
    log = told(tmp_path, *story)
    assert tuple(log.events) == story
    assert log.of(MemoryLost) == [MemoryLost(1, "a")]
    times = [entry.time for entry in log.entries]
    assert times == sorted(times)
    assert log.unreadable == 0


def test_a_run_that_starts_again_forgets_what_was_before(tmp_path: Path) -> None:
    log = told(tmp_path, RunStarted(Config()), RoundTrained(1, 0.5, {}), "noise\n", RunStarted(Config(), "second"))
    assert log.events == [RunStarted(Config(), "second")]
    assert log.unreadable == 0


def test_a_run_that_goes_on_forgets_later_rounds_and_the_tests_that_are_told_again(tmp_path: Path) -> None:
    trained = [RoundTrained(number, 0.5, {"a": 0}) for number in range(4)]
    log = told(
        tmp_path, RunStarted(Config()), trained[1], finished(1), trained[2], SiteLeftOut("train", 2, "a", "late"),
        CheckpointFailed(2, "full"), finished(2), trained[3], resumed(2), finished(2), trained[3],
    )  # fmt: skip
    assert [event.round_number for event in log.of(RoundTrained)] == [1, 2, 3]
    assert [event.round_number for event in log.of(RoundFinished)] == [1, 2]
    assert isinstance(log.events[-3], RunResumed)
    assert [len(log.of(kind)) for kind in (SiteLeftOut, CheckpointFailed)] == [1, 1]
    # Whoever hears of it before it is in the log finds the same.
    assert log.resumed(2).of(RoundFinished) == log.of(RoundFinished)[:1]


def test_a_boundary_counts_where_its_settings_cannot_be_read(tmp_path: Path) -> None:
    old = through_json(resumed(1)) | {"config": {"sites": "many"}}
    log = told(tmp_path, RunStarted(Config()), finished(1), RoundTrained(2, 0.5, {}), json.dumps(old) + "\n")
    assert log.events == [RunStarted(Config())]
    assert log.unreadable == 1


def test_lines_that_cannot_be_understood_are_counted(tmp_path: Path) -> None:
    log = told(
        tmp_path, RunStarted(Config()), "[1, 2]\n", '{"time": 2}\n', "noise\n", "[" * 100_000 + "\n", "\n",
        '{"time": null, "event": "RunEnded", "outcome": "failed", "reason": ""}\n',
        '{"time": 1, "event": "SiteMoved", "round_number": 1}\n', RunEnded("finished", ""),
    )  # fmt: skip
    assert log.events == [RunStarted(Config()), RunEnded("finished", "")]
    assert log.unreadable == 6
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")
    assert read_events(tmp_path).unreadable == 7


def test_half_a_line_that_a_kill_left_is_no_damage(tmp_path: Path) -> None:
    half = '{"time": 1, "event": "RoundFini'
    assert told(tmp_path, RunStarted(Config()), half).unreadable == 0
    assert told(tmp_path, resumed(0)).unreadable == 0
    assert told(tmp_path, half, RunEnded("finished", "")).unreadable == 1


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_every_site_that_moved_or_was_cleared_has_its_entry() -> None:
    why, figures = Evidence(reason="their updates disagree"), Evidence(-0.5, {1: math.nan}, 2.0, None, 1.0, {0: 0.5})
    found = rulings([SitesMoved(2, ("a", "b"), 0, 1, True, why), SiteCleared(3, "c", 1, figures), MemoryLost(3, "c")])
    assert [(one.round_number, one.site, one.origin, one.target, one.founded, one.stays) for one in found] == [
        (2, "a", 0, 1, True, False), (2, "b", 0, 1, True, False), (3, "c", 1, 1, False, True),
    ]  # fmt: skip
    assert evidence_entry(found[0].evidence) == {"reason": "their updates disagree"}
    expected = {
        "cosine": -0.5, "cosines": {"1": None}, "norm": 2.0, "peer_norm": None, "usual_norm": 1.0,
        "distances": {"0": 0.5}, "changed": None,
    }  # fmt: skip
    assert evidence_entry(found[2].evidence) == expected
    assert evidence_entry(replace(figures, reason="both")) == expected | {"reason": "both"}


# --- what is on disk --------------------------------------------------------------------------------------------------


class Note:
    """A listener that records, or fails to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.synced = 0

    def hear(self, event: Event) -> None:
        if self.failures:
            raise self.failures.pop()

    def sync(self) -> None:
        self.synced += 1


def test_an_audience_has_every_record_on_disk_or_says_which_is_behind(tmp_path: Path) -> None:
    class Display:
        def hear(self, event: Event) -> None: ...

    note, journal = Note(), Journal(tmp_path)
    audience = Audience([Display(), note, journal])
    audience.tell(RunEnded("finished", ""))
    audience.sync()
    assert note.synced == 1
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(OSError, match="No such file"):
        audience.sync()


def test_a_record_that_is_switched_off_is_behind_for_good() -> None:
    audience = Audience([Note(ValueError("broken"))])
    audience.sync()
    audience.tell(RunEnded("finished", ""))
    with pytest.raises(OSError, match="Note is switched off"):
        audience.sync()
