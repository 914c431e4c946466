"""Nothing that arrives is believed before it is checked."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common import wire
from common.config import Config
from common.extras import Network
from common.head_path import HeadPath
from common.metrics import from_logits
from common.signature import Signature

CLASSES = 4


def card(**changes: object) -> wire.SiteCard:
    values = {
        "name": "ward-7",
        "train_samples": 5,
        "test_samples": 2,
        "class_counts": (2, 3, 0, 0),
        "fault_count": 1,
        "faults": ("x.png: truncated",),
    }
    return wire.SiteCard(**(values | changes))  # type: ignore[arg-type]


def signature(dimension: int = 3) -> Signature:
    prototypes = np.ones((2, dimension), np.float32)
    return Signature(np.array([0, 1]), prototypes, np.array([0.4, 0.6]), np.array([0.5, 1.5]))


def read_introduction(content: RecordDict, limit_mb: int = 1) -> wire.Introduction:
    return wire.unpack_introduction(content, classes=CLASSES, fingerprint="signature", limit_mb=limit_mb)


def introduction() -> RecordDict:
    return wire.pack_introduction(wire.Introduction(card(), signature(), 0.5))


def update() -> RecordDict:
    return wire.pack_update(wire.Update({"w": np.ones((2, 3), np.float32), "n": np.array(7)}, 5, 0.25, 1.0))


def read_update(content: RecordDict) -> wire.Update:
    return wire.unpack_update(content, declared={}, network=Network({}, CLASSES), limit_mb=1)


def evaluation() -> RecordDict:
    scores = np.full((6, CLASSES), 0.25)
    statistics = from_logits(scores, np.array([0, 1, 2, 3, 0, 1]), np.ones(6))
    return wire.pack_evaluation(wire.Evaluation(statistics, 0.1))


def test_introduction_round_trips() -> None:
    received = read_introduction(introduction())
    assert received.card == card()
    assert isinstance(received.fingerprint, Signature)
    np.testing.assert_array_equal(received.fingerprint.prototypes, signature().prototypes)
    np.testing.assert_array_equal(received.fingerprint.scatter, signature().scatter)


def test_update_round_trips() -> None:
    received = read_update(update())
    assert (received.samples, received.loss) == (5, 0.25)
    assert received.state["n"].shape == ()
    np.testing.assert_array_equal(received.state["w"], np.ones((2, 3)))


def test_evaluation_round_trips() -> None:
    received = wire.unpack_evaluation(evaluation(), classes=CLASSES, limit_mb=1)
    assert received.statistics.confusion.sum() == 6


def test_task_round_trips() -> None:
    task = wire.Task(Config().for_site(), 3, 20)
    assert wire.unpack_task(wire.pack_task(task)) == task


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_arrays_round_trip(array: np.ndarray) -> None:
    received = wire.unpack_arrays(wire.pack_arrays({"a": array}))["a"]
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    np.testing.assert_array_equal(received, array)


def set_config(key: str, value: object) -> Callable[[RecordDict], None]:
    return lambda content: content.config_records["site"].__setitem__(key, value)  # type: ignore[arg-type]


def replace_arrays(**arrays: np.ndarray) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        current = wire.unpack_arrays(content.array_records["signature"])
        content["signature"] = wire.pack_arrays(current | arrays)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_config("version", 99), "version 99"),
        (set_config("name", "../../etc"), "site name"),
        (set_config("name", "x" * 65), "site name"),
        (set_config("name", ""), "site name"),
        (set_config("train_samples", 0), "train_samples"),
        (set_config("train_samples", -3), "train_samples"),
        (set_config("train_samples", 5.0), "train_samples"),
        (set_config("class_counts", [5]), "class counts"),
        (set_config("class_counts", [2, 4, -1, 0]), "class counts"),
        (set_config("class_counts", [1, 1, 1, 1]), "sum to 4"),
        (set_config("seconds", float("nan")), "seconds"),
        (set_config("train_samples", 2**40), "train_samples"),
        (set_config("class_counts", [3, 2, 0, 0]), "not those of the class counts"),
        (replace_arrays(classes=np.array([1, -(2**63)])), "increasing"),
        (lambda content: content.pop("site"), "no 'site' record"),
        (lambda content: content.pop("signature"), "no signature"),
        (replace_arrays(classes=np.array([0, 9])), "class 9"),
        (replace_arrays(classes=np.array([1, 1])), "unique"),
        (replace_arrays(classes=np.array([-1, 1])), "non-negative"),
        (replace_arrays(classes=np.array([0.0, 1.0])), "int64"),
        (replace_arrays(shares=np.array([0.4, 0.7])), "sum to 1.1"),
        (replace_arrays(shares=np.array([0.0, 1.0])), r"\(0, 1\]"),
        (replace_arrays(shares=np.array([np.nan, 1.0])), r"\(0, 1\]"),
        (replace_arrays(scatter=np.array([-0.1, 1.0])), "scatter must lie between 0 and"),
        (replace_arrays(scatter=np.array([np.nan, 1.0])), "scatter must lie between 0 and"),
        (replace_arrays(scatter=np.array([1e200, 1.0])), "scatter must lie between 0 and"),
        (replace_arrays(scatter=np.empty(0)), "0 scatters do not match"),
        (replace_arrays(prototypes=np.full((2, 3), np.inf, np.float32)), "not finite"),
        (replace_arrays(prototypes=np.ones((3, 3), np.float32)), "do not match"),
        (replace_arrays(prototypes=np.ones((2, 0), np.float32)), "no dimensions"),
        (replace_arrays(prototypes=np.ones((2, 70_000), np.float32)), "70000 dimensions"),
        (replace_arrays(extra=np.ones(1)), "has classes, prototypes, shares, scatter, not classes, extra, "),
        (replace_arrays(prototypes=np.ones((2, 200_000), np.float32)), "at most 1 MB"),
    ],
)
def test_bad_introductions_are_named(change: Callable[[RecordDict], None], reason: str) -> None:
    content = introduction()
    change(content)
    with pytest.raises(wire.WireError, match=reason):
        read_introduction(content)


def path_introduction() -> RecordDict:
    return wire.pack_introduction(wire.Introduction(card(), HeadPath(np.ones((5, 7), np.float32)), 0.5))


def read_path(content: RecordDict) -> wire.Introduction:
    return wire.unpack_introduction(content, classes=CLASSES, fingerprint="path", limit_mb=1)


def test_a_path_round_trips() -> None:
    received = read_path(path_introduction())
    assert isinstance(received.fingerprint, HeadPath)
    assert received.fingerprint.form == "5 epochs of 7 head parameters"
    np.testing.assert_array_equal(received.fingerprint.changes, np.ones((5, 7)))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"changes": np.ones(7, np.float32)}, "path: changes must be a 2-dimensional float32"),
        ({"changes": np.ones((5, 7))}, "path: changes must be a 2-dimensional float32"),
        ({"changes": np.ones((0, 7), np.float32)}, "path: .* at least one epoch"),
        ({"changes": np.full((5, 7), np.nan, np.float32)}, "path: .* not finite"),
        ({"changes": np.ones((5, 60_000), np.float32)}, "at most 1 MB"),
        ({}, "a path has changes, not nothing"),
        ({"changes": np.ones((5, 7), np.float32), "more": np.ones(1)}, "a path has changes, not changes, more"),
    ],
)
def test_bad_paths_are_named(arrays: dict[str, np.ndarray], reason: str) -> None:
    content = path_introduction()
    content["path"] = wire.pack_arrays(arrays)
    with pytest.raises(wire.WireError, match=reason):
        read_path(content)


def test_a_fingerprint_of_another_kind_is_named() -> None:
    with pytest.raises(wire.WireError, match="no path but a signature"):
        read_path(introduction())
    with pytest.raises(wire.WireError, match="no signature but a path"):
        read_introduction(path_introduction())
    content = path_introduction()
    content["path"] = MetricRecord({"changes": 1.0})
    with pytest.raises(wire.WireError, match="no path"):
        read_path(content)


def test_a_fingerprint_nobody_asked_for_is_not_read() -> None:
    received = wire.unpack_introduction(path_introduction(), classes=CLASSES, fingerprint=None, limit_mb=1)
    assert received.fingerprint is None


@pytest.mark.parametrize(
    ("key", "value"), [("samples", 0), ("samples", -1), ("samples", 2.5), ("loss", float("inf")), ("version", 99)]
)
def test_bad_updates_are_named(key: str, value: float) -> None:
    content = update()
    content.metric_records["training"][key] = value
    with pytest.raises(wire.WireError, match=key):
        read_update(content)


def test_missing_records_are_named() -> None:
    with pytest.raises(wire.WireError, match="'training'"):
        read_update(RecordDict())
    with pytest.raises(wire.WireError, match="no model"):
        read_update(RecordDict({"training": update().metric_records["training"]}))
    with pytest.raises(wire.WireError, match="'evaluation'"):
        wire.unpack_evaluation(update(), classes=CLASSES, limit_mb=1)


def test_statistics_must_add_up() -> None:
    content = evaluation()
    arrays = wire.unpack_arrays(content.array_records["statistics"])
    content["statistics"] = wire.pack_arrays(arrays | {"confusion": arrays["confusion"] + 1})
    with pytest.raises(wire.WireError, match="add up"):
        wire.unpack_evaluation(content, classes=CLASSES, limit_mb=1)
    with pytest.raises(wire.WireError, match="shape"):
        wire.unpack_evaluation(evaluation(), classes=CLASSES + 1, limit_mb=1)


def test_refusals_carry_the_reason() -> None:
    with pytest.raises(wire.WireError, match="no usable data"):
        read_update(wire.pack_refusal("no usable data"))


def raw(data: bytes) -> ArrayRecord:
    return ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})


def document(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], end: int) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


ONES = wire.pack_arrays({"a": np.ones(100, np.float32)})["safetensors"].data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        ONES[:-1],
        ONES + b"x",
        # A header that promises a terabyte must be refused before anything is allocated.
        (1 << 40).to_bytes(8, "little") + ONES[8:],
        document(entry("F32", [1 << 38], 1 << 40), bytes(4)),
        document(entry("F32", [-1], 4), bytes(4)),
        document(entry("F32", [2], 4), bytes(4)),
        document(entry("F32", [0, 999999999999999999, 999999999999999999], 0)),
        document(entry("F32", [2**63, 2**63], 4), bytes(4)),
        document(entry("F16", [2], 4), bytes(4)),
        document(entry("BF16", [2], 4), bytes(4)),
        document(entry("C64", [1], 8), bytes(8)),
        document(entry("object", [1], 8), bytes(8)),
        document({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
        document(entry("F32", [1], 4) | {"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        document([[[[]]]]),
        document(
            entry("F32", [1], 4)
            | {f"empty {n}": {"dtype": "U8", "shape": [0], "data_offsets": [4, 4]} for n in range(20_000)},
            bytes(4),
        ),
        document({"\x1b[2J": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
        document({"a" * 300: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
        b"\xff\xff\x00\x00\x00\x00\x00\x00" + b"[" * 65_535,
    ],
)
def test_foreign_bytes_are_never_trusted(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_arrays(raw(data))


@given(st.lists(st.integers(-(2**65), 2**65), max_size=9), st.sampled_from(["F32", "I64", "U8", "BOOL"]))
def test_any_shape_is_read_or_refused_in_no_time(shape: list[int], dtype: str) -> None:
    with contextlib.suppress(wire.WireError):
        assert wire.unpack_arrays(raw(document(entry(dtype, shape, 4), bytes(4))))["a"].nbytes in (0, 4)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_arrays(raw(data))


@given(st.binary(min_size=1, max_size=8), st.integers(0, 127))
def test_flipped_headers_never_crash(noise: bytes, position: int) -> None:
    data = bytearray(ONES)
    data[position : position + len(noise)] = noise
    with contextlib.suppress(wire.WireError):
        assert sum(array.nbytes for array in wire.unpack_arrays(raw(bytes(data))).values()) in (0, 400)


def test_arrays_in_another_packing_are_refused_with_advice() -> None:
    with pytest.raises(wire.WireError, match="update the older side"):
        wire.unpack_arrays(ArrayRecord({"a": Array(np.ones(3))}))


def test_a_message_is_few_objects_for_flower_however_many_tensors_a_model_has() -> None:
    """Every object is a request and a transaction of the SuperLink's database."""
    model = {f"layer {number}": np.ones(4, np.float32) for number in range(60)}
    content = wire.pack_task(wire.Task(Config().for_site(), 1, 2), wire.pack_arrays(model))
    assert len(list(iterate_object_tree(get_object_tree(content)))) == 5


def test_bad_settings_from_a_server_are_refused() -> None:
    content = wire.pack_task(wire.Task(Config().for_site(), 1, 2))
    content["task"] = ConfigRecord(dict(content.config_records["task"]) | {"settings": '{"nonsense": 1}'})
    with pytest.raises(wire.WireError, match="not valid here"):
        wire.unpack_task(content)


def test_the_size_limit_counts_every_record() -> None:
    content = update()
    content["ballast"] = wire.pack_arrays({"x": np.zeros(1_100_000, np.uint8)})
    with pytest.raises(wire.WireError, match="at most 1 MB"):
        read_update(content)


def test_foreign_text_cannot_command_a_terminal() -> None:
    with pytest.raises(wire.WireError) as caught:
        read_update(wire.pack_refusal("x\n\x1b[2Jfinished"))
    assert str(caught.value).isprintable()


def test_losses_are_bounded() -> None:
    content = update()
    content.metric_records["training"]["loss"] = 1e308
    with pytest.raises(wire.WireError, match="loss"):
        read_update(content)


def test_size_counts_array_bytes() -> None:
    assert wire.size(RecordDict({"m": MetricRecord({"a": 1})})) == 0
    assert wire.size(update()) > 2 * 3 * 4


def test_whether_a_site_keeps_models_travels_with_its_card() -> None:
    for keeps in (True, False):
        sent = wire.pack_introduction(wire.Introduction(card(keeps=keeps), signature(), 0.5))
        assert read_introduction(sent).card.keeps is keeps
    # A site of an earlier version says nothing of it.
    del sent["site"]["keeps"]  # type: ignore[attr-defined]
    assert read_introduction(sent).card.keeps is False
    sent["site"]["keeps"] = 1  # type: ignore[index]
    with pytest.raises(wire.WireError, match="keeps must be true or false"):
        read_introduction(sent)


def test_the_group_of_a_model_to_keep_travels_with_the_task() -> None:
    for group in (None, 0, 3):
        task = wire.Task(Config().for_site(), 2, 5, group=group)
        assert wire.unpack_task(wire.pack_task(task)) == task
    sent = wire.pack_task(wire.Task(Config().for_site(), 2, 5, group=1))
    sent["task"]["group"] = -1  # type: ignore[index]
    with pytest.raises(wire.WireError, match="group must be a whole number"):
        wire.unpack_task(sent)


def test_that_a_model_is_kept_round_trips() -> None:
    assert wire.unpack_kept(wire.pack_kept(0.25), limit_mb=1) == 0.25
    for content, words in (
        (RecordDict(), "no 'kept' record"),
        (wire.pack_refusal("disk full"), "disk full"),
        (RecordDict({"kept": MetricRecord({"version": wire.VERSION, "seconds": -1.0})}), "seconds"),
        (RecordDict({"kept": MetricRecord({"version": 0, "seconds": 1.0})}), "version"),
    ):
        with pytest.raises(wire.WireError, match=words):
            wire.unpack_kept(content, limit_mb=1)


def whole_task() -> wire.Task:
    return wire.Task(
        Config().for_site(), 3, 20, run="00ff", rule="scaffold", group=2, tests=2, accepted=1, checkpoints=(1, 2),
        folder="/runs/x/memory", question="losses", described=1,
    )  # fmt: skip


def test_everything_a_site_must_know_travels_with_the_task() -> None:
    assert wire.unpack_task(wire.pack_task(whole_task())) == whole_task()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("run", "../../x", "stamp must be at most 32 hexadecimal digits"),
        ("run", 33 * "a", "stamp"),
        ("run", 5, "run must be text"),
        ("rule", 5, "rule must be text"),
        ("question", 1.0, "question must be text"),
        ("folder", True, "folder must be text"),
        ("tests", -1, "tests must be a whole number"),
        ("tests", 1.0, "tests must be a whole number"),
        ("accepted", -1, "accepted must be a whole number"),
        ("accepted", 2**31, "accepted must be a whole number"),
        ("described", -1, "described must be a whole number"),
        ("checkpoints", 3, "checkpoints must be a list"),
        ("checkpoints", [-1], "checkpoints must be whole numbers"),
        ("checkpoints", [1.5], "checkpoints must be whole numbers"),
        ("checkpoints", list(range(9)), "checkpoints must be a list of at most 8"),
    ],
)
def test_bad_tasks_are_named(key: str, value: object, reason: str) -> None:
    content = wire.pack_task(whole_task())
    content["task"] = ConfigRecord(dict(content.config_records["task"]) | {key: value})  # type: ignore[dict-item]
    with pytest.raises(wire.WireError, match=reason):
        wire.unpack_task(content)


def test_a_site_says_that_it_has_forgotten() -> None:
    for fresh in (True, False):
        sent = wire.pack_update(wire.Update({"w": np.ones(2, np.float32)}, 5, 0.25, 1.0, fresh=fresh))
        assert read_update(sent).fresh is fresh
    sent.metric_records["training"]["fresh"] = 2
    with pytest.raises(wire.WireError, match="fresh must be 0 or 1, not 2"):
        read_update(sent)


def test_a_site_says_by_how_much_it_has_changed() -> None:
    sent = wire.pack_update(wire.Update({"w": np.ones(2, np.float32)}, 5, 0.25, 1.0, changed=7.5))
    assert read_update(sent).changed == 7.5
    for wrong in (-1.0, math.nan, math.inf, 1e6):
        sent.metric_records["training"]["changed"] = wrong
        with pytest.raises(wire.WireError, match="changed must be a number from 0 to 1000"):
            read_update(sent)


def test_why_a_model_is_untested_is_told_beside_an_update() -> None:
    content = update()
    content.update(wire.pack_untested("its scores\x1b[2J are not finite"))
    assert read_update(content).samples == 5
    with pytest.raises(wire.WireError, match=r"its scores.* are not finite") as caught:
        wire.unpack_evaluation(content, classes=CLASSES, limit_mb=1)
    assert str(caught.value).isprintable()


def test_a_test_arrives_beside_a_refusal_to_train() -> None:
    content = evaluation()
    content.update(wire.pack_refusal("the loss became nan"))
    assert wire.unpack_evaluation(content, classes=CLASSES, limit_mb=1).statistics.confusion.sum() == 6
    with pytest.raises(wire.WireError, match="the loss became nan"):
        read_update(content)


def test_records_that_nobody_asked_for_are_refused_by_name() -> None:
    """Whatever they are called: the name is shown in terminals."""
    kept = wire.pack_kept(1.0)
    kept["extra \x1b[2J"] = wire.pack_arrays({"junk": np.zeros(1)})
    with pytest.raises(wire.WireError, match="which nobody asked for") as caught:
        wire.unpack_kept(kept, limit_mb=1)
    assert "\x1b" not in str(caught.value)
