"""What travels beside a model is exactly what the method declared, or it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from common import wire
from common.config import Config
from common.extras import (
    Expected,
    InvalidExtras,
    Network,
    Rule,
    check_extras,
    exactly,
    like_model,
    like_parameters,
)
from common.state import Extras, State

MODEL: State = {
    "body.weight": np.ones((2, 3), np.float32),
    "norm.running_mean": np.zeros(3, np.float32),
    "norm.num_batches_tracked": np.array(4),
    "head.weight": np.ones((2, 3), np.float32),
    "head.bias": np.zeros(2, np.float32),
}
NETWORK = Network.of(MODEL, classes=2)
DECLARED: dict[str, Rule] = {
    "variate": like_parameters,
    "steps": exactly(
        taken=Expected("int64", least=1, most=50),
        rates=Expected("float64", (None, 2), least=0),
        mark=Expected("uint8", (4,)),
    ),
    "group.*": like_model,
}


def parameters() -> State:
    return {name: MODEL[name].copy() for name in ("body.weight", "head.weight", "head.bias")}


def extras() -> Extras:
    """Exactly what is declared, with two numbered records."""
    steps = {"taken": np.array(5), "rates": np.ones((3, 2)), "mark": np.zeros(4, np.uint8)}
    return {"variate": parameters(), "steps": steps, "group.0": dict(MODEL), "group.12": dict(MODEL)}


def put(record: str, array: str, value: object) -> Callable[[Extras], object]:
    return lambda extras: extras[record].__setitem__(array, np.asarray(value))


def add(record: str) -> Callable[[Extras], object]:
    return lambda extras: extras.__setitem__(record, dict(MODEL))


def test_exactly_what_is_declared_passes() -> None:
    check_extras(extras(), DECLARED, NETWORK)


def test_numbered_records_are_as_many_as_there_are() -> None:
    without = {name: arrays for name, arrays in extras().items() if not name.startswith("group")}
    check_extras(without, DECLARED, NETWORK)
    check_extras(without | {f"group.{number}": dict(MODEL) for number in range(1000)}, DECLARED, NETWORK)
    too_many = without | {f"group.{number}": dict(MODEL) for number in range(2000)}
    with pytest.raises(InvalidExtras, match="carries 2002 sets of arrays"):
        check_extras(too_many, DECLARED, NETWORK)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add("model.0"), "carries 'model.0', which nobody asked for"),
        (add("Variate"), "carries 'Variate', which nobody asked for"),
        (add("group"), "carries 'group', which"),
        (add("group."), "carries 'group.', which"),
        (add("group.*"), r"carries 'group\.\*', which"),
        (add("group.x"), "carries 'group.x', which"),
        (add("group.-1"), "carries 'group.-1', which"),
        (add("group.1.5"), "carries 'group.1.5', which"),
        (add("group.²"), "carries 'group.²', which"),
        (add("group.00"), "carries 'group.00', which"),
        (add("group." + 5000 * "9"), "which nobody asked for"),
        (add("variate.1"), "carries 'variate.1', which"),
        (lambda extras: extras.pop("variate"), "lacks variate$"),
        (lambda extras: (extras.pop("variate"), extras.pop("steps")), "lacks variate, steps"),
        (lambda extras: extras["variate"].pop("head.bias"), "variate lacks head.bias"),
        (lambda extras: extras["group.12"].pop("norm.running_mean"), "group.12 lacks norm.running_mean"),
        (put("variate", "tail", [1.0]), "variate has tail, which nobody asked for"),
        (put("variate", "norm.running_mean", np.zeros(3, np.float32)), "variate has norm.running_mean, which"),
        (put("steps", "mark", np.zeros(4)), r"steps: mark is float64\(4,\), not uint8 of 4"),
        (put("steps", "taken", np.array(5, np.uint8)), "steps: taken is uint8"),
        (put("steps", "taken", [5]), r"steps: taken is int64\(1,\), not int64 of a single number"),
        (put("steps", "mark", np.zeros(5, np.uint8)), r"steps: mark is uint8\(5,\), not uint8 of 4"),
        (put("steps", "rates", np.ones(2)), "steps: rates .* not float64 of any×2"),
        (put("steps", "rates", np.ones((2, 3))), "steps: rates .* not float64 of any×2"),
        (put("variate", "body.weight", np.ones((3, 2), np.float32)), "variate: body.weight is .* not float32 of 2×3"),
        (put("variate", "body.weight", np.ones((2, 3))), "variate: body.weight is float64"),
        (put("steps", "rates", [[1.0, np.nan]]), "steps: rates holds values that are not finite"),
        (put("variate", "head.bias", np.array([0, -np.inf], np.float32)), "variate: head.bias .* not finite"),
        (put("steps", "taken", 0), "steps: taken holds values below 1"),
        (put("steps", "taken", 51), "steps: taken holds values above 50"),
        (put("steps", "rates", [[1.0, 1.0], [1.0, -1e-9]]), "steps: rates holds values below 0"),
    ],
)
def test_whatever_is_not_as_declared_is_named(change: Callable[[Extras], object], reason: str) -> None:
    changed = extras()
    change(changed)
    with pytest.raises(InvalidExtras, match=reason):
        check_extras(changed, DECLARED, NETWORK)


def test_an_upper_bound_alone_is_named() -> None:
    with pytest.raises(InvalidExtras, match="share: part holds values above 1"):
        check_extras({"share": {"part": np.array(1.5)}}, {"share": exactly(part=Expected("float64", most=1))}, NETWORK)


def test_sizes_that_are_open_may_be_zero() -> None:
    empty = extras()
    empty["steps"]["rates"] = np.ones((0, 2))
    check_extras(empty, DECLARED, NETWORK)


def test_what_is_only_tested_needs_less_but_nothing_else_and_nothing_broken() -> None:
    check_extras({}, DECLARED, NETWORK, complete=False)
    check_extras({"variate": parameters()}, DECLARED, NETWORK, complete=False)
    with pytest.raises(InvalidExtras, match="lacks variate, steps"):
        check_extras({}, DECLARED, NETWORK)
    with pytest.raises(InvalidExtras, match="carries 'more'"):
        check_extras({"more": parameters()}, DECLARED, NETWORK, complete=False)
    with pytest.raises(InvalidExtras, match=r"variate lacks body\.weight"):
        check_extras({"variate": {}}, DECLARED, NETWORK, complete=False)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (like_model, set(MODEL)),
        (like_parameters, {"body.weight", "head.weight", "head.bias"}),
    ],
)
def test_a_rule_follows_from_the_network(rule: Rule, names: set[str]) -> None:
    expected = rule(NETWORK)
    assert set(expected) == names
    assert all(expected[name] == Expected(str(MODEL[name].dtype), MODEL[name].shape) for name in names)


# Any rule, and any single fault

DTYPES = ("float32", "float64", "int64", "uint8")
names = st.text("abcdefgh._0123456789", min_size=1, max_size=8).filter(lambda name: not name[-1].isdigit())
expectations = st.builds(
    Expected,
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.one_of(st.none(), st.integers(1, 3)), max_size=3).map(tuple),
    least=st.one_of(st.none(), st.integers(0, 3)),
    most=st.one_of(st.none(), st.integers(4, 9)),
)
declarations = st.dictionaries(names, st.dictionaries(names, expectations, min_size=1, max_size=3), max_size=3)


def rules(declared: Mapping[str, Mapping[str, Expected]]) -> dict[str, Rule]:
    return {name: exactly(**arrays) for name, arrays in declared.items()}


def as_described(limits: Expected) -> np.ndarray:
    shape = tuple(2 if size is None else size for size in limits.shape)
    # Within every pair of bounds that is drawn.
    return np.full(shape, 3 if limits.least == 3 else 4 if limits.least is None else limits.least, limits.dtype)


def described(declared: Mapping[str, Mapping[str, Expected]]) -> Extras:
    return {
        record: {name: as_described(limits) for name, limits in arrays.items()} for record, arrays in declared.items()
    }


@given(declarations)
def test_whatever_a_rule_describes_passes(declared: Mapping[str, Mapping[str, Expected]]) -> None:
    check_extras(described(declared), rules(declared), NETWORK)


@given(declarations.filter(bool), st.data())
def test_any_single_fault_is_refused_by_name(
    declared: Mapping[str, Mapping[str, Expected]], data: st.DataObject
) -> None:
    sent = described(declared)
    record = data.draw(st.sampled_from(sorted(sent)))
    name = data.draw(st.sampled_from(sorted(sent[record])))
    limits, array = declared[record][name], sent[record][name]
    faults: dict[str, Callable[[], object]] = {
        "record gone": lambda: sent.pop(record),
        "array gone": lambda: sent[record].pop(name),
        "unknown record": lambda: sent.__setitem__(f"{record}?", sent[record]),
        "unknown array": lambda: sent[record].__setitem__(f"{name}?", array),
        "type": lambda: sent[record].__setitem__(
            name, array.astype(data.draw(st.sampled_from(sorted(set(DTYPES) - {limits.dtype}))))
        ),
        "dimension": lambda: sent[record].__setitem__(name, array[None]),
    }
    if any(size is not None for size in limits.shape):
        axis = data.draw(st.sampled_from([axis for axis, size in enumerate(limits.shape) if size is not None]))
        faults["size"] = lambda: sent[record].__setitem__(name, np.concatenate([array, array], axis=axis))
    if array.dtype.kind == "f":
        hole = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        faults["not finite"] = lambda: array.__setitem__(data.draw(places(array)), hole)
    if limits.least:
        faults["low"] = lambda: array.__setitem__(data.draw(places(array)), limits.least - 1)
    if limits.most is not None:
        faults["high"] = lambda: array.__setitem__(data.draw(places(array)), limits.most + 1)
    fault = data.draw(st.sampled_from(sorted(faults)))
    faults[fault]()
    with pytest.raises(InvalidExtras) as caught:
        check_extras(sent, rules(declared), NETWORK)
    assert record in str(caught.value)
    assert name in str(caught.value) or fault in ("record gone", "unknown record")


def places(array: np.ndarray) -> st.SearchStrategy[tuple[int, ...]]:
    """Some element of an array."""
    return st.tuples(*(st.integers(0, size - 1) for size in array.shape))


# The same through the wire, in both directions


def to_site(sent: Extras) -> RecordDict:
    task = wire.Task(Config().for_site(), 1, 2)
    return wire.pack_task(task, wire.pack_arrays(MODEL), wire.pack_extras(sent))


def at_site(content: RecordDict) -> Extras:
    return wire.unpack_extras(content, DECLARED, NETWORK)


def to_server(sent: Extras) -> RecordDict:
    return wire.pack_update(wire.Update(MODEL, 5, 0.25, 1.0, sent))


def at_server(content: RecordDict, limit_mb: int = 1) -> Extras:
    return wire.unpack_update(content, declared=DECLARED, network=NETWORK, limit_mb=limit_mb).extras


def answered(sent: Extras) -> RecordDict:
    return wire.pack_answered(wire.Answered(sent, 0.5))


def at_asker(content: RecordDict, limit_mb: int = 1) -> Extras:
    return wire.unpack_answered(content, declared=DECLARED, network=NETWORK, limit_mb=limit_mb).extras


Ways = tuple[Callable[[Extras], RecordDict], Callable[[RecordDict], Extras]]
BOTH_WAYS = pytest.mark.parametrize(
    "way", [(to_site, at_site), (to_server, at_server), (answered, at_asker)], ids=["down", "up", "answer"]
)


@BOTH_WAYS
def test_extras_round_trip(way: Ways) -> None:
    pack, unpack = way
    received = unpack(pack(extras()))
    assert received.keys() == extras().keys()
    for record, arrays in extras().items():
        assert received[record].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(received[record][name], array)
            assert received[record][name].dtype == array.dtype


@BOTH_WAYS
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add("more"), "carries 'more'"),
        (lambda extras: extras.pop("variate"), "lacks variate"),
        (put("variate", "tail", [1.0]), "variate has tail"),
        (put("group.12", "head.bias", np.zeros(3, np.float32)), "group.12: head.bias"),
        (put("variate", "head.bias", np.array([0, np.nan], np.float32)), "variate: head.bias .* not finite"),
        (put("steps", "taken", 0), "steps: taken .* below 1"),
    ],
)
def test_on_the_wire_the_fault_is_named(way: Ways, change: Callable[[Extras], object], reason: str) -> None:
    pack, unpack = way
    changed = extras()
    change(changed)
    with pytest.raises(wire.WireError, match=reason):
        unpack(pack(changed))


@BOTH_WAYS
def test_a_record_that_is_none_of_arrays_is_named(way: Ways) -> None:
    pack, unpack = way
    content = pack(extras())
    content["extra variate"] = MetricRecord({"tail": 1})
    with pytest.raises(wire.WireError, match="carries no extra variate"):
        unpack(content)


@pytest.mark.parametrize(("pack", "unpack"), [(to_server, at_server), (answered, at_asker)], ids=["up", "answer"])
def test_too_many_bytes_are_refused_and_the_heaviest_record_is_named(
    pack: Callable[[Extras], RecordDict], unpack: Callable[..., Extras]
) -> None:
    large = extras()
    large["steps"]["rates"] = np.ones((100_000, 2))
    content = pack(large)
    with pytest.raises(
        wire.WireError, match=r"1\.6 MB of arrays, the most of them in 'extra steps'; at most 1 MB .*max_message_mb"
    ):
        unpack(content)
    assert len(unpack(content, limit_mb=2)["steps"]["rates"]) == 100_000


def test_bytes_nobody_asked_for_count_too() -> None:
    content = to_server(extras())
    content["ballast\x1b[2J"] = wire.pack_arrays({"x": np.zeros(1_100_000, np.uint8)})
    with pytest.raises(wire.WireError, match="most of them in 'ballast") as caught:
        at_server(content)
    assert str(caught.value).isprintable()


def test_a_refusal_is_never_longer_than_anybody_reads() -> None:
    hostile = extras()
    hostile["variate"] |= {f"{number:0180d}": np.zeros(0, np.uint8) for number in range(3000)}
    with pytest.raises(wire.WireError, match="variate has 000") as caught:
        at_server(to_server(hostile))
    assert len(str(caught.value)) <= 500
    content = to_server(extras())
    content["extra \x1b[2J" + 10_000 * "x"] = ArrayRecord(dict(wire.pack_arrays(MODEL)))
    with pytest.raises(wire.WireError, match="it carries") as caught:
        at_server(content)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 500


def test_a_message_without_extras_is_fine_where_none_are_declared() -> None:
    update = wire.pack_update(wire.Update(MODEL, 5, 0.25, 1.0))
    received = wire.unpack_update(update, declared={}, network=NETWORK, limit_mb=1)
    assert received.extras == {}
    with pytest.raises(wire.WireError, match="carries 'variate', which nobody asked for"):
        wire.unpack_update(to_server({"variate": parameters()}), declared={}, network=NETWORK, limit_mb=1)
