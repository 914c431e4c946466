"""What a site with a key tries at the SuperLink: to speak as the server, to send without end, to fill the database."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.linkstate import LinkStateFactory, linkstate_factory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from common import riding
from server.flower import fleet, kept_messages, messages, patience
from server.flower.fleet import Fleet
from server.flower.kept_messages import KeptMessages
from tests.support.contract import changed

FLEET = "server/flower/fleet.py"


class Refused(Exception):
    """What a site hears."""


class Call(grpc.ServicerContext):  # type: ignore[misc]
    def is_active(self) -> bool:
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Refused(details)


Call.__abstractmethods__ = frozenset()


class SuperLink:
    """A SuperLink with a database, a run that is under way with a limit of 1 MB, and two sites."""

    def __init__(self, path: Path, servicer: type[FleetServicer] = Fleet) -> None:
        objects = ObjectStoreFactory(str(path))
        factory = LinkStateFactory(str(path), NoOpFederationManager(), objects)
        self.state: KeptMessages = factory.state()  # type: ignore[assignment]
        self.fleet = servicer(factory, objects, True)
        self.sites = [self.state.create_node("", "", name.encode(), 30.0, name=name) for name in ("alice", "bob")]
        for site in self.sites:
            self.state.activate_node(site, 30.0)
        self.run, self.task = self.start_run()
        self.seeds = itertools.count()

    def start_run(self) -> tuple[int, int]:
        settings = {"round.max_message_mb": 1}
        run = self.state.create_run(
            None, None, None, settings, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )  # fmt: skip
        task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        assert self.state.claim_task(task)
        assert self.state.activate_task(task)
        return run, task  # type: ignore[return-value]

    def message(self, sender: int, to: int, megabytes: float = 0.0, question: Message | None = None) -> Message:
        """A message, named as Flower names it."""
        messages.speak_as(run=self.run, node=sender, task=1)
        # Other bytes in every message: Flower keeps the same ones once.
        rows = np.random.default_rng(next(self.seeds)).bytes(int(megabytes * 1e6))
        content = RecordDict({"m": ArrayRecord([np.frombuffer(rows, np.uint8)])})
        made = Message(content, to, "train") if question is None else Message(content, reply_to=question)
        messages.set_message_id(made, made.object_id)
        return made

    def ask(self, site: int) -> Message:
        """Send a site a question, as the ServerApp does."""
        question = self.message(SUPERLINK_NODE_ID, site)
        assert self.state.store_message_ins(question)
        return question

    def letter(self, message: Message) -> tuple[Message, dict[str, bytes]]:
        """A message without its content, and its parts."""
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        return make_message(metadata=message.metadata, content=RecordDict()), parts

    def begin_to_ask(self, site: int, megabytes: float = 0.0) -> Callable[[], None]:
        """Announce a question, as the ServerApp does; what sends its parts."""
        question = self.message(SUPERLINK_NODE_ID, site, megabytes)
        session = self.state.start_session(self.run)
        letter, parts = self.letter(question)
        _, missing = self.state.store_message_and_object_tree(letter, get_object_tree(question), session)

        def send() -> None:
            assert all(self.state.store_object(self.run, session, name, parts[name]) for name in missing)

        return send

    def look(self, site: int) -> list[str]:
        """Look for a question, as a SuperNode does; its name."""
        found = self.fleet.PullMessages(PullMessagesRequest(node=Node(node_id=site)), Call())
        return [letter.metadata.message_id for letter in found.messages_list]

    def confirm(self, site: int, question: str) -> None:
        node = Node(node_id=site)
        request = ConfirmMessageReceivedRequest(node=node, run_id=self.run, message_object_id=question)
        self.fleet.ConfirmMessageReceived(request, Call())

    def announce(self, site: int, message: Message, tree: ObjectTree | None = None) -> Any:
        letter = make_message(metadata=message.metadata, content=RecordDict())
        return self.fleet.PushMessages(
            PushMessagesRequest(
                node=Node(node_id=site),
                messages_list=[message_to_proto(letter)],
                message_object_trees=[tree or get_object_tree(message)],
            ),
            Call(),
        )

    def send(self, site: int, message: Message, most: int = 1_000) -> int:
        """Announce a message and send its parts, the largest last; return how many were kept."""
        answer = self.announce(site, message)
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        kept = 0
        for name in sorted(answer.objects_to_push, key=lambda name: len(parts[name]))[:most]:
            kept += self.part(site, answer.session_id, name, parts[name])
        return kept

    def part(self, site: int, session: str, name: str, content: bytes) -> bool:
        request = PushObjectRequest(
            node=Node(node_id=site), run_id=self.run, session_id=session, object_id=name, object_content=content
        )
        return bool(self.fleet.PushObject(request, Call()).stored)

    def fetch(self, *questions: Message) -> list[Message]:
        return self.state.get_message_res({question.metadata.message_id for question in questions}, self.run)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all its tables: Flower takes seconds to make them."""
    path = tmp_path_factory.mktemp("empty") / "state.db"
    ObjectStoreFactory(str(path)).store()
    return path


@pytest.fixture
def superlink(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    shutil.copy(empty, tmp_path)
    monkeypatch.setitem(linkstate_factory.__dict__, "SqlLinkState", KeptMessages)
    monkeypatch.setattr(fleet, "keep_clean", lambda state: None)
    return SuperLink(tmp_path / "state.db")


def test_an_honest_answer_arrives_once_it_is_whole(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    answer = superlink.message(alice, 0, 0.9, question)
    announced = superlink.announce(alice, answer)
    assert superlink.fetch(question) == []
    parts = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}
    assert all(superlink.part(alice, announced.session_id, name, parts[name]) for name in announced.objects_to_push)
    (found,) = superlink.fetch(question)
    assert found.metadata.message_id == answer.metadata.message_id


def test_flower_itself_lets_a_site_speak_as_the_server(tmp_path: Path, empty: Path) -> None:
    """If this fails, Flower has closed the gap."""
    shutil.copy(empty, tmp_path)
    there = SuperLink(tmp_path / "state.db", FleetServicer)
    alice, bob = there.sites
    forged = there.message(SUPERLINK_NODE_ID, bob)
    assert there.send(alice, forged) > 0
    (got,) = there.state.get_message_ins(bob, limit=1)
    assert got.metadata.src_node_id == SUPERLINK_NODE_ID, changed("a site could send in the server's name", FLEET)


def test_a_site_cannot_speak_as_the_server_or_as_another_site(superlink: SuperLink) -> None:
    alice, bob = superlink.sites
    question = superlink.ask(bob)
    for forged, reason in (
        (superlink.message(SUPERLINK_NODE_ID, bob), "another's name"),
        (superlink.message(bob, 0, 0.1, question), "another's name"),
        (superlink.message(alice, bob), "answers nothing"),
        (superlink.message(alice, SUPERLINK_NODE_ID), "answers nothing"),
    ):
        with pytest.raises(Refused, match=reason):
            superlink.announce(alice, forged)
    (got,) = superlink.state.get_message_ins(bob, limit=None)
    assert got.metadata.message_id == question.metadata.message_id
    assert superlink.fetch(question) == []


def test_an_announcement_is_of_a_run_that_exists_and_of_its_own_parts(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    answer = superlink.message(alice, 0, 0.1, question)
    other = get_object_tree(superlink.message(alice, 0, 0.2, question))
    with pytest.raises(Refused, match="other parts"):
        superlink.announce(alice, answer, other)
    huge = get_object_tree(answer)
    huge.children.extend(ObjectTree(object_id=f"{number:064x}") for number in range(10_000))
    with pytest.raises(Refused, match="too many parts"):
        superlink.announce(alice, answer, huge)
    answer.metadata.__dict__["_run_id"] = 5
    with pytest.raises(Refused, match="run that does not exist"):
        superlink.announce(alice, answer)
    with pytest.raises(Refused, match="no message"):
        superlink.fleet.PushMessages(PushMessagesRequest(node=Node(node_id=alice)), Call())


def test_an_answer_without_end_is_cut_off_and_the_run_hears_why(
    superlink: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(fleet, "log", lambda level, text, *values: said.append(text % values))
    alice, bob = superlink.sites
    questions = superlink.ask(alice), superlink.ask(bob)
    with pytest.raises(Refused, match=r"larger than 1 MB \(round.max_message_mb\)"):
        superlink.send(alice, superlink.message(alice, 0, 64, questions[0]))
    assert superlink.send(bob, superlink.message(bob, 0, 0.5, questions[1])) > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 40e6
    answers = {answer.metadata.src_node_id: answer for answer in superlink.fetch(*questions)}
    assert answers[alice].error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    assert "larger than 1 MB (round.max_message_mb)" in answers[alice].error.reason
    assert not answers[bob].has_error()
    assert said == ["Refused site alice: its answer is larger than 1 MB (round.max_message_mb): nothing of it was kept"]
    assert superlink.state.bytes_of(answers[alice].metadata.message_id) < 1_000


def test_what_is_there_already_counts_too(superlink: SuperLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of one limit each, and one more that is made of all their parts."""
    for one in (fleet, kept_messages):
        monkeypatch.setattr(one, "BESIDE_ARRAYS", 0)
    monkeypatch.setattr(fleet, "BESIDE_ARRAYS", 0)
    alice, _ = superlink.sites
    questions = [superlink.ask(alice) for _ in range(3)]
    halves = [superlink.message(alice, 0, 0.6, question) for question in questions[:2]]
    for half in halves:
        assert superlink.send(alice, half) > 0
    both = superlink.message(alice, 0, 0, questions[2])
    both.content["x"], both.content["y"] = (half.content["m"] for half in halves)
    messages.set_message_id(both, both.object_id)
    with pytest.raises(Refused, match="larger than 1 MB"):
        superlink.announce(alice, both)


def test_a_part_of_no_announced_message_is_refused(superlink: SuperLink) -> None:
    alice, bob = superlink.sites
    answer = superlink.message(alice, 0, 0.1, superlink.ask(alice))
    announced = superlink.announce(alice, answer)
    name = announced.objects_to_push[0]
    content = get_all_nested_objects(answer)[name].deflate()
    with pytest.raises(Refused, match="no message that it announced"):
        superlink.part(bob, "", name, content)
    assert not superlink.part(bob, "another", name, content)
    assert superlink.part(alice, announced.session_id, name, content)


def test_the_server_app_gets_no_more_answers_at_once_than_fit(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_messages, "MOST_AT_ONCE", 1_000_000)
    questions = [superlink.ask(site) for site in superlink.sites]
    for site, question in zip(superlink.sites, questions, strict=True):
        superlink.send(site, superlink.message(site, 0, 0.6 + site % 2 / 100, question))
    first = superlink.fetch(*questions)
    assert len(first) == 1
    left = [one for one in questions if one.metadata.message_id != first[0].metadata.reply_to_message_id]
    assert len(superlink.fetch(*left)) == 1


def test_a_site_that_breaks_off_is_not_waited_for_any_longer(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    assert superlink.send(alice, superlink.message(alice, 0, 0.5, question), most=1) == 1
    assert superlink.fetch(question) == []
    superlink.state.query("UPDATE object_push_sessions SET expires_at = '2020-01-01 00:00:00.000000'")
    (answer,) = superlink.fetch(question)
    assert answer.error.reason == "it broke off while it sent its answer"


def test_the_database_gives_back_what_ended_runs_leave(superlink: SuperLink, tmp_path: Path) -> None:
    path, state = tmp_path / "state.db", superlink.state
    for _ in range(8):
        alice, _ = superlink.sites
        superlink.send(alice, superlink.message(alice, 0, 1, superlink.ask(alice)))
    assert state.clean() == 0, "a run is under way"
    assert state.finish_task(superlink.task, SubStatus.COMPLETED, "")
    assert state.clean() > 6e6
    left = sum(found.stat().st_size for found in tmp_path.iterdir() if found.name.startswith("state.db"))
    assert left < 2e6
    with sqlite3.connect(path) as database:
        for table in ("objects", "run_objects", "message_ins", "message_res", "object_push_sessions"):
            assert database.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,), table


# Waiting


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_HELD", 0.2)


def test_a_site_that_asks_is_answered_once_a_question_is_there_and_whole(superlink: SuperLink) -> None:
    alice, bob = superlink.sites
    with ThreadPoolExecutor(2) as pool:
        looks = {site: pool.submit(superlink.look, site) for site in (alice, bob)}
        begun = time.monotonic()
        send = {site: superlink.begin_to_ask(site) for site in (alice, bob)}
        send[alice]()
        assert len(looks[alice].result(fleet._HELD)) == 1
        assert not looks[bob].done()
        send[bob]()
        assert len(looks[bob].result(fleet._HELD)) == 1
    assert time.monotonic() - begun < fleet._HELD / 2


@pytest.mark.usefixtures("briefly")
def test_a_site_that_nobody_asks_hears_so_after_a_while(superlink: SuperLink) -> None:
    begun = time.monotonic()
    superlink.begin_to_ask(superlink.sites[0])
    assert superlink.look(superlink.sites[0]) == []
    assert time.monotonic() - begun >= fleet._HELD


@pytest.mark.usefixtures("briefly")
def test_a_question_that_got_lost_on_its_way_is_handed_out_again(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    superlink.begin_to_ask(alice)()
    (question,) = superlink.look(alice)
    # The connection broke: a site that has a question says so before it asks for the next.
    assert superlink.look(alice) == [question]
    superlink.confirm(alice, question)
    assert superlink.look(alice) == []


@pytest.mark.usefixtures("briefly")
def test_a_question_that_was_answered_is_not_handed_out_again(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    superlink.state.object_store.preregister(superlink.run, get_object_tree(question))
    assert superlink.look(alice) == [question.metadata.message_id]
    superlink.send(alice, superlink.message(alice, 0, 0.01, question))
    assert superlink.look(alice) == []


def test_small_parts_ride_with_their_letters_both_ways(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    question, session = superlink.message(SUPERLINK_NODE_ID, alice), superlink.state.start_session(superlink.run)
    letter, parts = superlink.letter(question)
    riding.seat(letter, parts)
    assert superlink.state.store_message_and_object_tree(letter, get_object_tree(question), session) == (True, [])
    (handed,) = superlink.fleet.PullMessages(PullMessagesRequest(node=Node(node_id=alice)), Call()).messages_list
    assert riding.read(handed) == parts
    superlink.confirm(alice, question.metadata.message_id)
    answer = superlink.message(alice, 0, 0.01, question)
    letter, parts = superlink.letter(answer)
    riding.seat(letter, parts)
    request = PushMessagesRequest(
        node=Node(node_id=alice),
        messages_list=[message_to_proto(letter)],
        message_object_trees=[get_object_tree(answer)],
    )
    assert list(superlink.fleet.PushMessages(request, Call()).objects_to_push) == []
    (found,) = superlink.fetch(question)
    assert riding.unseat(found) == parts


def test_what_rides_counts_as_what_is_sent_by_itself(superlink: SuperLink, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (fleet, kept_messages):
        monkeypatch.setattr(one, "BESIDE_ARRAYS", 0)
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    answer = superlink.message(alice, 0, 1.5, question)
    letter, parts = superlink.letter(answer)
    riding.seat(letter, parts)
    request = PushMessagesRequest(
        node=Node(node_id=alice),
        messages_list=[message_to_proto(letter)],
        message_object_trees=[get_object_tree(answer)],
    )
    with pytest.raises(Refused, match="larger than 1 MB"):
        superlink.fleet.PushMessages(request, Call())
    (found,) = superlink.fetch(question)
    assert "larger than 1 MB" in found.error.reason


def test_large_parts_are_fetched_one_by_one(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    superlink.begin_to_ask(alice, riding.MOST / 1e6 + 1)()
    (handed,) = superlink.fleet.PullMessages(PullMessagesRequest(node=Node(node_id=alice)), Call()).messages_list
    assert riding.read(handed) == {}


def test_the_server_app_is_told_of_an_answer_when_it_is_whole(superlink: SuperLink) -> None:
    alice, _ = superlink.sites
    question = superlink.ask(alice)
    answer = superlink.message(alice, 0, 0.01, question)

    def wait(seconds: float) -> float:
        begun = time.monotonic()
        assert superlink.state.get_message_res({patience.a_wait(seconds)}, superlink.run) == []
        return time.monotonic() - begun

    announced = superlink.announce(alice, answer)
    assert wait(0.2) >= 0.2
    parts = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(wait, patience._LONGEST)
        time.sleep(0.05)
        for name in announced.objects_to_push:
            superlink.part(alice, announced.session_id, name, parts[name])
        assert waits.result() < patience._LONGEST
    assert len(superlink.fetch(question)) == 1


def test_what_has_passed_is_added_up_and_written_down_at_times(superlink: SuperLink) -> None:
    def account() -> tuple[int, int, float]:
        (run,) = superlink.state.get_run_info(run_ids=[superlink.run])
        return run.bytes_sent, run.bytes_recv, run.clientapp_runtime

    for _ in range(3):
        superlink.state.store_traffic(superlink.run, bytes_sent=10, bytes_recv=1)
        superlink.state.add_clientapp_runtime(superlink.run, 0.5)
    assert account() == (0, 0, 0.0)
    superlink.state.clean()
    superlink.state.clean()
    assert account() == (30, 3, 1.5)
