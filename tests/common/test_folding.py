"""Small messages in one piece: the same after as before, fewer objects, and nothing foreign believed."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from client.one_piece import in_one_piece
from common import wire
from tests.support.loopback import set_task_identity


def update(numbers: int = 100) -> RecordDict:
    return RecordDict(
        {
            "model": wire.pack_arrays({"weight": np.arange(numbers, dtype=np.float32)}),
            "training": MetricRecord({"version": 5, "loss": 0.25, "samples": 7}),
            "statistics": wire.pack_arrays({"confusion": np.eye(3, dtype=np.int64)}),
            "task": ConfigRecord({"name": "é", "list": [1, 2], "bytes": b"\\0", "yes": True}),
        }
    )


def objects(content: RecordDict) -> int:
    """How many Flower sends and stores for it, beside the letter."""
    arrays = [array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values()]
    return 1 + len(content) + sum(1 + len(array.children) for array in arrays)


def test_a_small_message_is_two_objects_and_comes_back_as_it_was() -> None:
    folded = wire.fold(update())
    assert (objects(update()), objects(folded)) == (9, 2)
    assert wire.is_folded(folded)
    found = wire.unfold(folded)
    assert found == update()
    assert list(found) == list(update())
    assert wire.size(found) == wire.size(update())


def test_a_large_message_and_one_of_records_that_are_not_ours_stay_as_they_are() -> None:
    large = update(600_000)
    assert wire.fold(large) is large
    foreign = RecordDict({"arrays": ArrayRecord([np.zeros(3)])})
    assert wire.fold(foreign) is foreign
    assert wire.unfold(large) is large


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (RecordDict({"folded": ConfigRecord({}), "more": ConfigRecord({})}), "and then it is not"),
        (RecordDict({"folded": MetricRecord({})}), "and then it is not"),
        (RecordDict({"folded": ConfigRecord({"config a": "text"})}), "otherwise than agreed"),
        (RecordDict({"folded": ConfigRecord({"arrays a": bytes(20_000_000)})}), "otherwise than agreed"),
        (RecordDict({"folded": ConfigRecord({"other a": b""})}), "a part 'other a'"),
        (RecordDict({"folded": ConfigRecord({"config a": b"nothing"})}), "'config a' is not readable"),
        (
            RecordDict({"folded": ConfigRecord({"metrics a": ConfigRecord({}).deflate()})}),
            "'metrics a' is not readable",
        ),
    ],
)
def test_a_folded_message_that_is_none_is_refused_in_words(content: RecordDict, fault: str) -> None:
    with pytest.raises(wire.WireError, match=fault):
        wire.unfold(content)


def asked(content: RecordDict) -> Message:
    set_task_identity()
    question = Message(content, 7, "train")
    question.metadata.__dict__["_message_id"] = "question"
    question.metadata.__dict__["_dst_node_id"] = 7
    return question


@pytest.mark.parametrize("folds", [True, False], ids=["one piece", "records"])
def test_a_site_answers_as_it_was_asked(folds: bool) -> None:
    heard = []

    def app(message: Message, context: Context) -> Message:
        heard.append(message.content)
        return Message(update(), reply_to=message)

    question = asked(wire.fold(update()) if folds else update())
    answer = in_one_piece(question, Context(1, 7, {}, RecordDict(), {}), app)
    assert heard == [update()]
    assert wire.is_folded(answer.content) == folds
    assert wire.unfold(answer.content) == update()


def test_what_cannot_be_unfolded_is_refused_by_saying_why() -> None:
    def app(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    question = asked(RecordDict({"folded": ConfigRecord({"arrays a": "x"})}))
    answer = wire.unfold(in_one_piece(question, Context(1, 7, {}, RecordDict(), {}), app).content)
    assert "otherwise than agreed" in str(answer["refusal"])


def test_arrays_that_are_not_packed_as_agreed_are_not_folded() -> None:
    odd = RecordDict({"model": ArrayRecord({"weight": Array("uint8", (1,), "safetensors", b"x")})})
    assert wire.fold(odd) is odd
