"""What a site relies on in Flower: one assumption a test, and each says what changed and who relies on it."""

from __future__ import annotations

import ast
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flwr
import grpc
import httpx
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.client.grpc_rere_client import connection
from flwr.common import config as flower_config
from flwr.common.constant import (
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
    HEARTBEAT_DEFAULT_INTERVAL,
    ErrorCode,
    SubStatus,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.proto.task_pb2 import Task as TaskProto
from flwr.supercore import logger, telemetry
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import FLWR_DISABLE_UPDATE_CHECK, TaskType
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.error import grpc as grpc_errors
from flwr.supercore.exit import exit as flower_exit
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.servicer.runtime.runtime_handlers import acquire_task
from flwr.supercore.utils import get_flwr_home
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from flwr.supernode.nodestate import NodeStateFactory, nodestate_factory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.runtime import run_clientapp as flower

from client.flower import bundle, log_lines, runtime
from client.flower.supernode import Pace, seated, telling, with_riders
from common import riding
from tests.support.contract import changed, fields, names_used, parameters, strings
from tests.support.loopback import set_task_identity

BUNDLE = "client/flower/bundle.py"
RUNTIME = "client/flower/runtime.py"


def test_flower_is_the_version_whose_internals_were_read() -> None:
    assert flwr.__version__ == "1.39.0", changed("it was version 1.39.0", "client/flower/ and server/flower/")


# The Runtime API


@pytest.mark.parametrize(
    ("function", "expected", "ours"),
    [
        (flower.run_clientapp, "runtime_api_address token insecure certificates runtime_dependency_install", BUNDLE),
        (flower.pull_task_input, "client", BUNDLE),
        (flower.install_from_fab, "fab_file install_dir skip_prompt", BUNDLE),
        (pull_and_inflate_object_from_tree, "initial_backoff backoff_cap max_tries_per_object", BUNDLE),
        (flower.push_message, "client message context", RUNTIME),
        (flower.push_task_output, "client context sub_status details", RUNTIME),
        (RuntimeHttpClient.__init__, "base_url interceptors verify timeout", RUNTIME),
        (RuntimeHttpClient.AcquireTask, "request", RUNTIME),
        (RuntimeTokenHttpInterceptor.__init__, "token", RUNTIME),
        (RuntimeVersionHttpInterceptor.__init__, "component_name", RUNTIME),
        (SuperExecAuthHttpInterceptor.__init__, "master_secret protected_methods", RUNTIME),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_function_takes_the_arguments_it_is_given(function: Callable[..., Any], expected: str, ours: str) -> None:
    assert set(expected.split()) <= set(parameters(function)), changed(f"{function.__qualname__} took {expected}", ours)


@pytest.mark.parametrize("function", [flower.push_message, flower.push_task_output, flower.run_clientapp])
def test_a_function_needs_no_more_than_it_is_given(function: Callable[..., Any]) -> None:
    given = {"client", "message", "context", "sub_status", "details"}
    given |= {"runtime_api_address", "token", "insecure", "certificates"}
    needed = {name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty}
    assert needed <= given, changed(f"{function.__name__} did not need {needed - given}", f"{BUNDLE} or {RUNTIME}")


def test_a_question_for_a_task_names_the_types_it_can_run() -> None:
    assert "supported_task_types" in fields(AcquireTaskRequest), changed(
        "AcquireTaskRequest had supported_task_types", RUNTIME
    )


def test_the_answer_is_a_task_with_a_number_and_a_token() -> None:
    assert fields(AcquireTaskResponse) == {"task", "token"}, changed("AcquireTaskResponse was task and token", RUNTIME)
    assert "task_id" in fields(TaskProto), changed("a task had a task_id", RUNTIME)


def test_a_task_of_a_site_is_of_the_type_of_client_apps() -> None:
    assert TaskType.CLIENT_APP == "flwr-clientapp", changed("a site's tasks had the type flwr-clientapp", RUNTIME)


def test_one_who_can_run_nothing_is_answered_but_given_no_task() -> None:
    state = NodeStateFactory(ObjectStoreFactory()).state()
    task = state.create_task(TaskType.CLIENT_APP, run_id=1, fab_hash="x")
    told = changed("a question without task types claimed nothing", f"{RUNTIME}, TaskQueue.acquire(claim=False),")
    assert not acquire_task(AcquireTaskRequest(), state).HasField("task"), told
    claimed = acquire_task(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]), state)
    assert (claimed.task.task_id, bool(claimed.token)) == (task, True), changed("one with them claimed a task", RUNTIME)


def test_the_question_is_signed_under_the_name_that_the_supernode_checks() -> None:
    assert runtime._ACQUIRE in set(strings(RuntimeHttpClient.AcquireTask)), changed(
        f"the method was called {runtime._ACQUIRE}", RUNTIME
    )


@pytest.mark.parametrize(
    ("raised", "ours"),
    [(httpx.ConnectError("nobody"), runtime.NobodyThere), (httpx.ReadTimeout("slow"), runtime.NoAnswer)],
    ids=["nobody there", "slow"],
)
def test_a_supernode_that_does_not_answer_shows_as_an_error_of_httpx(
    raised: httpx.HTTPError, ours: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        raise raised

    monkeypatch.setattr(httpx.Client, "send", fail)
    with pytest.raises(runtime.NoAnswer) as caught:
        runtime.TaskQueue("127.0.0.1:1", runtime.Link(None)).acquire(claim=True)
    assert caught.type is ours, changed("RuntimeHttpClient asked through httpx.Client.send", RUNTIME)


def test_somebody_elses_answer_shows_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        return httpx.Response(200, content=b"<html>", request=request)

    monkeypatch.setattr(httpx.Client, "send", other)
    with pytest.raises(runtime.NoAnswer):
        runtime.TaskQueue("127.0.0.1:1", runtime.Link(None)).acquire(claim=True)


def test_a_secret_is_the_bytes_of_its_file_and_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b" between us\n")
    told = changed("a secret was the exact bytes of its file, and no file was no secret", RUNTIME)
    assert load_superexec_auth_secret(str(tmp_path / "secret")) == b" between us\n", told
    assert load_superexec_auth_secret(None) is None, told
    with pytest.raises(ValueError, match="secret"):
        load_superexec_auth_secret(str(tmp_path / "absent"))


def test_a_header_is_enough_to_answer_a_message() -> None:
    set_task_identity()
    message = Message(RecordDict(), 100, "train")
    message.metadata.__dict__["_message_id"] = "m"
    header = runtime.header_of(message)
    about = runtime.message_from_proto(runtime.MessageProto.FromString(header)).metadata
    assert (about.run_id, about.dst_node_id, about.message_id) == (1, 100, "m"), changed(
        "a message without its content kept run, node and id", RUNTIME
    )


def test_a_crash_is_told_as_flower_would_tell_it() -> None:
    assert ErrorCode.CLIENT_APP_CRASHED == 8, changed("a crash had the error code 8", f"{RUNTIME}, docs/deployment.md,")
    assert SubStatus.FAILED == "failed", changed("a task that failed had the sub-status failed", RUNTIME)


def test_a_claimed_task_has_half_a_minute_to_start() -> None:
    assert HEARTBEAT_DEFAULT_INTERVAL == 30, changed(
        "a claimed task was handed out again after 30 s", "client/executor/serving.py"
    )
    assert runtime._REPLY < HEARTBEAT_DEFAULT_INTERVAL


# Running a task from its bundle


def test_flower_calls_the_parts_that_are_replaced_by_their_names() -> None:
    replaced = {"pull_task_input", "install_from_fab", "get_project_dir", "get_load_client_app_fn"}
    missing = replaced - names_used(flower.run_clientapp)
    assert not missing, changed(f"run_clientapp called {missing}", BUNDLE)
    assert "pull_and_inflate_object_from_tree" in names_used(flower.pull_task_input), changed(
        "pull_task_input called pull_and_inflate_object_from_tree", BUNDLE
    )


def test_what_is_pulled_is_message_context_run_and_bundle() -> None:
    returned = inspect.signature(flower.pull_task_input).return_annotation
    assert returned.__args__ == (Message, Context, Run, Fab), changed(
        "pull_task_input returned message, context, run and bundle", BUNDLE
    )
    assert {"fab_id", "fab_version"} <= set(Run.__dataclass_fields__), changed("a run named its app", BUNDLE)


def test_a_supernode_reads_the_settings_of_a_bundle_by_the_name_that_is_replaced() -> None:
    assert "get_fused_config_from_fab" in names_used(start_client_internal._pull_and_store_message), changed(
        "the SuperNode called get_fused_config_from_fab", "client/flower/supernode.py"
    )


def test_a_supernode_looks_and_pauses_by_the_names_that_are_replaced() -> None:
    ours = "client/flower/supernode.py"
    internals = start_client_internal.start_client_internal
    assert {"_pull_and_store_message", "time"} <= names_used(internals), changed("the SuperNode called these", ours)
    assert "time" in names_used(start_client_internal._push_messages), changed("it waited for answers by time", ours)
    tree = ast.parse(inspect.getsource(start_client_internal))
    uses = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert uses == {"sleep"}, changed("it used nothing of time but sleep", ours)
    pulled = inspect.signature(start_client_internal._pull_and_store_message).return_annotation
    assert pulled == int | None, changed("a look returned the run of what it found, or None", ours)
    assert nodestate_factory.InMemoryNodeState in type(NodeStateFactory(ObjectStoreFactory()).state()).__mro__


def test_a_supernode_goes_on_when_a_part_of_an_answer_comes() -> None:
    told: list[str] = []
    state = telling(InMemoryNodeState, lambda: told.append("part"))(ObjectStoreFactory().store())
    set_task_identity()
    message = Message(RecordDict({"numbers": ConfigRecord({"one": 1})}), 7, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = get_all_nested_objects(message)
    session = state.start_session(1)
    letter = make_message(metadata=message.metadata, content=RecordDict())
    stored, missing = state.store_message_and_object_tree(letter, get_object_tree(message), session)
    assert stored
    assert told == ["part"]
    assert all(state.store_object(1, session, name, parts[name].deflate()) for name in missing)
    assert len(told) == 1 + len(missing) == 4


def letter_and_parts() -> tuple[Message, ObjectTree, dict[str, bytes]]:
    set_task_identity()
    message = Message(RecordDict({"numbers": ConfigRecord({"one": 1})}), 7, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return make_message(metadata=message.metadata, content=RecordDict()), get_object_tree(message), parts


def test_what_rides_with_a_letter_is_kept_at_a_supernode_and_rides_on_to_its_task() -> None:
    state = telling(InMemoryNodeState, lambda: None)(ObjectStoreFactory().store())
    letter, tree, parts = letter_and_parts()
    riding.seat(letter, parts)
    assert state.store_message_and_object_tree(letter, tree, state.start_session(1)) == (True, [])
    assert all(state.object_store.get(name) == part for name, part in parts.items())
    assert not letter.content
    (found,) = state.get_messages(run_ids=[1], is_reply=False, limit=1)
    assert riding.unseat(found) == parts


def test_a_part_that_is_another_than_its_letter_names_is_not_kept() -> None:
    state = telling(InMemoryNodeState, lambda: None)(ObjectStoreFactory().store())
    letter, tree, parts = letter_and_parts()
    wrong = sorted(parts)[0]
    riding.seat(letter, parts | {wrong: b"another"})
    assert state.store_message_and_object_tree(letter, tree, state.start_session(1)) == (True, [wrong])


def test_a_supernode_fetches_no_part_that_came_with_a_letter_and_sends_none_by_itself() -> None:
    letter, tree, parts = letter_and_parts()
    one, *others = sorted(parts)
    riding.seat(letter, {name: parts[name] for name in others})
    fetched: list[str] = []
    receive, pull = with_riders(lambda: (letter, tree), lambda run, name: fetched.append(name) or parts[name])
    assert receive() == (letter, tree)
    assert not letter.content
    assert {name: pull(1, name) for name in parts} == parts
    assert fetched == [one]
    sent: list[Message] = []
    send = seated(lambda letter, tree, seconds: sent.append(letter), parts)
    send(letter, tree, 1.0)
    assert riding.unseat(sent[0]) == parts
    # A part that is still to come: all are sent as ever.
    send = seated(lambda letter, tree, seconds: sent.append(letter), {**parts, one: None})
    send(letter, tree, 1.0)
    assert not sent[1].content


def test_a_letter_is_written_by_the_names_that_are_replaced() -> None:
    ours = "client/flower/supernode.py"
    named = {node.id for node in ast.walk(ast.parse(inspect.getsource(connection))) if isinstance(node, ast.Name)}
    assert "remove_content_from_message" in named, changed("a SuperNode emptied its letters by this name", ours)
    assert "_push_messages" in names_used(start_client_internal.start_client_internal), changed("it sent by it", ours)
    assert {"receive", "pull_object"} <= set(parameters(start_client_internal._pull_and_store_message)), ours
    assert {"send", "object_store"} <= set(parameters(start_client_internal._push_messages)), ours
    assert "push_message" in names_used(flower.run_clientapp), changed("run_clientapp called push_message", BUNDLE)


def test_a_look_that_was_held_counts_as_a_pause_and_a_pause_ends_when_there_is_something() -> None:
    pace = Pace(held=100.0)
    pace.sleep(3.0)
    pace.held = 0.0
    threading.Timer(0.05, pace.tell).start()
    begun = time.monotonic()
    pace.sleep(30.0)
    assert time.monotonic() - begun < 15.0
    begun = time.monotonic()
    pace.sleep(0.1)
    assert time.monotonic() - begun >= 0.1


def test_flower_looks_for_a_bundle_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert get_flwr_home() == tmp_path, changed("FLWR_HOME named Flower's folder", BUNDLE)
    digest = "0123456789abcdef"
    installed = tmp_path / bundle.APP_DIR / f"us.app.1.{digest[: bundle.FAB_HASH_TRUNCATION]}"
    assert flower_config.get_project_dir("us/app", "1", digest) == installed, changed(
        "a bundle lay in apps/ under a name that ends with its hash", BUNDLE
    )


@pytest.mark.parametrize(("code", "status"), [(0, 0), (800, 1)], ids=["done", "an error it reported"])
def test_flower_ends_a_process_with_0_or_1(code: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread would end the tests after some seconds.
    monkeypatch.setattr(flower_exit.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(flower_exit, "trigger_exit_handlers", lambda **options: None)
    with pytest.raises(SystemExit) as leaving:
        flower_exit.flwr_exit(code, emit_telemetry=False)
    assert leaving.value.code == status, changed(
        "flwr_exit ended a process with 0, or with 1 after an error", "client/executor/child.py, cause_of,"
    )


# What its programs are told, and what they say


def test_the_supernode_takes_the_options_it_is_given() -> None:
    given = "--superlink --host --port --node-config --health-server-address --insecure --root-certificates "
    given += "--auth-supernode-private-key --isolation --superexec-auth-secret-file"
    missing = set(given.split()) - set(_parse_args_run_supernode()._option_string_actions)
    assert not missing, changed(f"flower-supernode had {missing}", "cli/commands/site.py")


def test_flower_obeys_the_environment() -> None:
    told = changed("it read these variables", "cli/deployment/supervisor.py, with client/executor/__init__.py,")
    assert "FLWR_TELEMETRY_ENABLED" in set(strings(telemetry)), told
    assert FLWR_DISABLE_UPDATE_CHECK == "FLWR_DISABLE_UPDATE_CHECK", told
    assert FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION == "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", told


def test_flower_logs_under_its_name() -> None:
    assert logger.LOGGER_NAME == "flwr", changed(
        "its logger was flwr", "client/executor/__main__.py, with cli/simulation/engine.py and server/app.py,"
    )


def test_a_supernode_that_got_in_says_so() -> None:
    said = strings(start_client_internal)
    assert any(map(log_lines.is_admission, said)), changed(
        f"a SuperNode that got in wrote {log_lines.ADMITTED!r}", "client/flower/log_lines.py"
    )


def test_a_supernode_that_is_turned_away_says_so() -> None:
    class Refused(grpc.RpcError):  # type: ignore[misc]
        def details(self) -> str:
            error = FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "to the server alone")
            return grpc_errors._flower_error_to_grpc_json(error, "no")

    said = connection._format_connection_error(Refused())
    assert any(map(log_lines.is_refusal, said.splitlines())), changed(
        f"a SuperNode that was turned away wrote {log_lines.ACTIVATION_FAILED!r}, not {said!r}",
        "client/flower/log_lines.py",
    )
