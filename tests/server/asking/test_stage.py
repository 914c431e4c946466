"""Asking sites: what is announced, sent, counted and told, whatever a site does."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from common import wire
from common.extras import InvalidExtras
from server.aggregation import RejectedUpdate
from server.asking.grid import StreamingGrid
from server.asking.stage import Exchange, Failure, Question, ask
from server.flower.messages import set_message_id
from server.history.events import Audience, ReplyAccepted, SiteLeftOut, StageStarted
from tests.support.loopback import LoopbackGrid
from tests.support.runs import Record

Behaviour = Callable[[Message], Message | None]


@dataclass(frozen=True)
class Site:
    name: str
    node_id: int


@dataclass(frozen=True)
class Said:
    text: str
    seconds: float


SITES = [Site(f"site {letter}", node) for letter, node in zip("abcdefg", range(100, 107), strict=True)]


def content_of(size: int, text: str = "") -> RecordDict:
    """A message with an array of so many numbers."""
    record = wire.pack_arrays({"values": np.zeros(size)})
    return RecordDict({"model": record, "said": ConfigRecord({"text": text})})


def says(text: str, size: int = 1) -> Behaviour:
    return lambda question: Message(content_of(size, text), reply_to=question)


def breaks(reason: str) -> Behaviour:
    return lambda question: Message(Error(code=5, reason=reason), reply_to=question)


def is_silent(question: Message) -> None:
    return None


class Scripted(LoopbackGrid):
    """Sites that do as they are told."""

    def __init__(self, *behaviours: Behaviour) -> None:
        super().__init__(len(behaviours))
        self._behaviours = behaviours

    def _answer(self, message: Message) -> Message | None:
        reply = self._behaviours[message.metadata.dst_node_id - 100](message)
        if reply is not None:
            set_message_id(reply)
        return reply


def read(site: Site, content: RecordDict) -> Said:
    text = str(content["said"]["text"])
    for error in (wire.WireError, InvalidExtras, RejectedUpdate):
        if text == error.__name__:
            raise error(f"a {text} of {site.name}")
    if text == "bug":
        raise ZeroDivisionError
    return Said(text, 0.25)


def exchange_of(record: Record, count: int, **options: object) -> Exchange[Site, Said]:
    values: Mapping[str, object] = {
        "question": lambda site: Question(content_of(10 * (site.node_id - 99)), "train"),
        "read": read,
        "timeout": 0.3,
    }
    return Exchange(Audience([record]), "train", 7, SITES[:count], **(values | options))  # type: ignore[arg-type]


def carry_out(
    *behaviours: Behaviour, in_flight: int = 0, **options: object
) -> tuple[Record, dict[str, str], list[Message]]:
    """Ask as many sites as there are behaviours; return what was told, what was answered, and what was sent."""
    record, grid = Record(), Scripted(*behaviours)
    exchange = exchange_of(record, len(behaviours), **options)
    answers = ask(exchange, StreamingGrid(grid, deadline=60.0, in_flight=in_flight), 0.3)
    return record, {site.name: answer.text for site, answer in answers}, grid.pushed


def test_a_stage_is_announced_once_and_before_anything_is_sent() -> None:
    record, grid = Record(), Scripted(says("yes"), says("yes"))
    exchange = exchange_of(record, 2)
    assert record.events == [StageStarted("train", 7, 2)]
    assert grid.pushed == []
    list(ask(exchange, StreamingGrid(grid, deadline=1.0), 1.0))
    assert record.of(StageStarted) == [StageStarted("train", 7, 2)]
    assert [message.metadata.message_type for message in grid.pushed] == ["train", "train"]


def test_nobody_to_ask_is_told_all_the_same() -> None:
    record, answers, _ = carry_out()
    assert record.events == [StageStarted("train", 7, 0)]
    assert answers == {}


def test_the_bytes_of_each_question_and_of_each_answer_are_counted() -> None:
    record, answers, sent = carry_out(says("yes", 3), says("no", 50))
    sizes = [wire.size(message.content) for message in sent]
    assert sizes[0] < sizes[1]
    assert sorted(record.of(ReplyAccepted), key=lambda event: event.site) == [
        ReplyAccepted("train", 7, "site a", sizes[0], wire.size(content_of(3)), 0.25),
        ReplyAccepted("train", 7, "site b", sizes[1], wire.size(content_of(50)), 0.25),
    ]
    assert answers == {"site a": "yes", "site b": "no"}


def test_whatever_a_site_does_it_is_told_exactly_once() -> None:
    record, answers, _ = carry_out(
        is_silent, breaks("gone\x1b[2J"), says("WireError"), says("InvalidExtras"), says("RejectedUpdate"), says("yes")
    )
    assert answers == {"site f": "yes"}
    assert record.reasons == {
        ("train", "site a"): "no reply within 0 s (round.deadline)",
        ("train", "site b"): "error 5: gone\N{REPLACEMENT CHARACTER}[2J",
        ("train", "site c"): "a WireError of site c",
        ("train", "site d"): "a InvalidExtras of site d",
        ("train", "site e"): "a RejectedUpdate of site e",
    }
    told = [event.site for event in record.events if isinstance(event, ReplyAccepted | SiteLeftOut)]
    assert sorted(told) == [site.name for site in SITES[:6]]
    assert {event.round_number for event in record.events} == {7}
    # Who does not answer is known last.
    assert record.events[-1] == SiteLeftOut("train", 7, "site a", "no reply within 0 s (round.deadline)")


def test_one_whose_message_could_not_be_sent_is_not_called_silent() -> None:
    made: list[str] = []

    def question(site: Site) -> Question:
        made.append(site.name)
        return Question(content_of(1), "train")

    record, answers, sent = carry_out(says("yes"), is_silent, says("yes"), in_flight=1, question=question)
    assert answers == {"site a": "yes"}
    assert record.reasons == {
        ("train", "site b"): "no reply within 0 s (round.deadline)",
        ("train", "site c"): "its message could not be sent in time (round.deadline, round.in_flight)",
    }
    assert len(record.of(SiteLeftOut)) == 2
    # A message is as large as a model: it is made when there is room for it, not before.
    assert made == ["site a", "site b"]
    assert len(sent) == 2


def asked(exchange: Exchange[Site, Said]) -> list[Message]:
    """The messages of an exchange, sent."""
    questions = list(exchange.messages())
    for question in questions:
        set_message_id(question)
    return questions


def test_a_reply_that_nobody_asked_for_is_ignored_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    record, grid = Record(), LoopbackGrid(2)
    exchange = exchange_of(record, 2)
    first, second = asked(exchange)
    stranger = Message(content_of(1), 999, "train")
    set_message_id(stranger)
    replies = [says("yes")(question) for question in (first, stranger, first, second)]
    with caplog.at_level(logging.WARNING, "coterie"):
        answers = [(site.name, said) for site, said in exchange.answers(replies, grid)]  # type: ignore[arg-type]
    assert answers == [("site a", Said("yes", 0.25)), ("site b", Said("yes", 0.25))]
    assert [event.site for event in record.of(ReplyAccepted)] == ["site a", "site b"]
    assert not record.of(SiteLeftOut)
    ignored = [line for line in caplog.messages if "nobody is waiting for" in line]
    assert [line.split()[5] for line in ignored] == ["999", "100"]


def test_who_is_still_waited_for_is_known_at_every_answer() -> None:
    exchange, grid = exchange_of(Record(), 3), LoopbackGrid(3)
    replies = [says(text)(question) for question, text in zip(asked(exchange), ("yes", "WireError"), strict=False)]
    waiting = [[site.name for site in exchange.waiting] for _ in exchange.answers(replies, grid)]  # type: ignore[arg-type]
    assert waiting == [["site b", "site c"], ["site c"]]


def test_an_answer_may_be_told_under_another_stage_and_round() -> None:
    def question(site: Site) -> Question:
        return (
            Question(content_of(1), "train") if site is SITES[0] else Question(content_of(1), "evaluate", "evaluate", 6)
        )

    record, _, _ = carry_out(says("yes"), says("yes"), says("WireError"), is_silent, question=question)
    told = [event for event in record.events if isinstance(event, ReplyAccepted | SiteLeftOut)]
    assert sorted((event.site, event.stage, event.round_number) for event in told) == [
        ("site a", "train", 7), ("site b", "evaluate", 6), ("site c", "evaluate", 6), ("site d", "evaluate", 6),
    ]  # fmt: skip
    assert set(record.reasons) == {("evaluate", "site c"), ("evaluate", "site d")}


def test_who_minds_failures_hears_of_them_in_the_place_of_the_audience() -> None:
    failures: dict[str, Failure] = {}
    record, _, _ = carry_out(
        is_silent,
        breaks("gone"),
        says("WireError"),
        fail=lambda site, failure: failures.update({site.name: failure}),
        limits="round.start_timeout",
    )
    assert failures == {
        "site a": Failure("no reply within 0 s (round.start_timeout)"),
        "site b": Failure("error 5: gone"),
        "site c": Failure("a WireError of site c", is_wrong=True),
    }
    assert not record.of(SiteLeftOut)


def test_who_is_not_known_yet_is_told_of_by_the_name_in_its_answer() -> None:
    record, _, _ = carry_out(says("clinic"), name=lambda site, said: said.text)
    assert [event.site for event in record.of(ReplyAccepted)] == ["clinic"]


def test_a_mistake_of_our_own_is_not_blamed_on_the_site() -> None:
    with pytest.raises(ZeroDivisionError):
        carry_out(says("bug"))


def test_a_reply_is_let_go_before_the_next_one_is_fetched() -> None:
    exchange, grid = exchange_of(Record(), 3), LoopbackGrid(3)
    kept: list[bool] = []

    def replies() -> Iterator[Message]:
        for question in asked(exchange):
            reply = says("yes", 1000)(question)
            assert reply is not None
            alive = weakref.ref(reply)
            yield reply
            del reply
            kept.append(alive() is not None)

    assert len(list(exchange.answers(replies(), grid))) == 3
    assert kept == [False] * 3


def test_what_messages_are_made_from_is_let_go_when_all_are_made() -> None:
    """A model as bytes, which would lie beside the replies as long as they come."""

    class Model:
        pass

    model = Model()
    alive = weakref.ref(model)

    def question(site: Site, model: Model = model) -> Question:
        return Question(content_of(1), "train")

    exchange = exchange_of(Record(), 2, question=question)
    del model, question
    assert alive() is not None
    assert len(list(exchange.messages())) == 2
    assert alive() is None
