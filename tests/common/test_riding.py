"""Parts that ride with a letter: taken out as they were put in, none too large, and only others are fetched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import PullObjectRequest

from common import riding
from tests.support.loopback import set_task_identity

PARTS = {"a": b"1", "b": b"\0" * 1000}
LARGE = {"a": bytes(riding.MOST), "b": b"1"}


def letter() -> Message:
    set_task_identity()
    return Message(RecordDict(), 7, "train")


@pytest.mark.parametrize("writes", [True, False], ids=["written", "put"])
@pytest.mark.parametrize("reads", [True, False], ids=["read", "taken"])
def test_parts_ride_and_the_letter_is_empty_again(writes: bool, reads: bool) -> None:
    message = letter()
    if not writes:
        riding.seat(message, PARTS)
    proto = message_to_proto(message)
    if writes:
        riding.write(proto, PARTS)
    if reads:
        assert riding.read(proto) == PARTS
        assert proto == message_to_proto(letter_like(message))
    else:
        message = message_from_proto(proto)
        assert riding.unseat(message) == PARTS
        assert not message.content


def letter_like(message: Message) -> Message:
    riding.unseat(message)
    return message


@pytest.mark.parametrize("parts", [{}, LARGE, {"a": b""}], ids=["none", "too large", "one not there yet"])
def test_what_does_not_fit_does_not_ride(parts: dict[str, bytes]) -> None:
    message = letter()
    riding.seat(message, parts)
    assert not message.content
    proto = message_to_proto(message)
    riding.write(proto, parts)
    assert riding.read(proto) == {}


def test_a_large_message_is_not_written_beforehand() -> None:
    asked = []

    def part(name: str, content: bytes) -> Any:
        return SimpleNamespace(deflate=lambda: asked.append(name) or content)

    few = {name: part(name, content) for name, content in PARTS.items()}
    assert riding.gather(few) == PARTS
    asked.clear()
    many = {"a": part("a", bytes(riding.MOST + 1)), "b": part("b", b"1")}
    assert riding.gather(many) == {}
    assert asked == ["a"]


def test_foreign_contents_of_a_letter_are_not_believed() -> None:
    message = letter()
    message.content = RecordDict({"riders": ConfigRecord({"a": 1.5, "b": b"1"})})
    assert riding.unseat(message) == {"b": b"1"}
    message.content = RecordDict({"other": ConfigRecord({"a": b"1"})})
    assert riding.unseat(message) == {}
    assert not message.content


def test_a_client_fetches_only_the_parts_that_did_not_come() -> None:
    fetched, sent = [], []
    proto = message_to_proto(letter())
    riding.write(proto, {"a": b"1"})
    client = SimpleNamespace(
        PullMessages=lambda request: SimpleNamespace(messages_list=[proto]),
        PushMessages=lambda request: sent.append(request.messages_list[0]),
        PullObject=lambda request: fetched.append(request.object_id),
        close=lambda: "closed",
    )
    carriage = riding.Carriage(client, PARTS)
    carriage.PullMessages(None)
    assert carriage.PullObject(PullObjectRequest(object_id="a")).object_content == b"1"
    carriage.PullObject(PullObjectRequest(object_id="a"))
    carriage.PullObject(PullObjectRequest(object_id="b"))
    assert fetched == ["a", "b"]
    carriage.PushMessages(SimpleNamespace(messages_list=[message_to_proto(letter())]))
    assert riding.read(sent[0]) == PARTS
    assert carriage.close() == "closed"
