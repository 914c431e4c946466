"""What the coordinator relies on in Flower: one assumption a test, and each says what changed and who relies on it."""

from __future__ import annotations

import importlib
import inspect
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
import typer
import uvicorn.protocols.http.h11_impl
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.cli.app import app as flower_commands
from flwr.cli.auth_plugin import OidcCliPlugin
from flwr.cli.constant import AUTHN_TYPE_STORE_KEY
from flwr.cli.run import run as flower_run
from flwr.common.constant import ACCESS_TOKEN_KEY, AuthnType, ErrorCode
from flwr.proto.control_pb2 import ListNodesResponse, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.serverapp import Grid
from flwr.supercore import sql_mixin
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_options
from flwr.supercore.constant import SQLITE_PRAGMAS, NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.interceptors.rpc_error_translation_interceptor import RpcErrorTranslationServerInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.main import create_app

from cli.deployment import authority
from cli.deployment import superlink as patience
from server.flower import control, log_lines, messages, superlink
from tests.support.contract import changed, fields, names_used, parameters, strings

MESSAGES = "server/flower/messages.py"
CONTROL = "server/flower/control.py"
LOG_LINES = "server/flower/log_lines.py"
SUPERLINK = "server/flower/superlink.py"


# Messages


def test_a_message_is_made_by_whoever_the_process_was_told_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    with pytest.raises(RuntimeError, match="TaskIdentity"):
        Message(RecordDict(), 100, "train")
    messages.speak_as(run=7, node=1, task=2)
    about = Message(RecordDict(), 100, "train").metadata
    assert (about.run_id, about.src_node_id, about.src_task_id) == (7, 1, 2), changed(
        "a new message was of the run, node and task in TaskIdentity", f"{MESSAGES}, speak_as,"
    )


def test_a_message_gets_its_name_from_whoever_sends_it() -> None:
    messages.speak_as(run=1, node=1, task=1)
    message = Message(RecordDict(), 100, "train")
    assert message.metadata.message_id == "", changed("a new message had no name", f"{MESSAGES}, set_message_id,")
    told = changed("metadata kept the name of a message as _message_id", f"{MESSAGES}, set_message_id,")
    assert "_message_id" in message.metadata.__dict__, told
    name = messages.set_message_id(message)
    assert name
    assert message.metadata.message_id == name, told
    messages.set_message_id(message, "m")
    assert message.metadata.message_id == "m", told


def test_an_answer_names_the_message_it_answers() -> None:
    messages.speak_as(run=1, node=1, task=1)
    request = Message(RecordDict(), 100, "train")
    messages.set_message_id(request, "m")
    reply = messages.app_raised(request, "why")
    assert (reply.error.code, reply.error.reason) == (2, "why"), changed(
        "a ClientApp that raised was error 2", f"{MESSAGES}, app_raised, with docs/deployment.md"
    )
    assert (reply.metadata.reply_to_message_id, reply.metadata.src_node_id) == ("m", 100), changed(
        "a reply named its question, and came from the node that was asked", f"{MESSAGES}, app_raised,"
    )


def test_an_answer_can_be_made_up_for_a_node_that_is_gone() -> None:
    reply = messages.node_unavailable("m", 100, "why")
    told = changed("make_message took metadata and an error, and kept both", f"{MESSAGES}, node_unavailable,")
    assert reply.has_error(), told
    assert (reply.error.code, reply.error.reason) == (ErrorCode.NODE_UNAVAILABLE, "why"), told
    assert (reply.metadata.reply_to_message_id, reply.metadata.src_node_id) == ("m", 100), told
    assert reply.error.code == 5, changed("a node that is gone was error 5", f"{MESSAGES} with docs/deployment.md")


def test_a_run_may_be_known_by_its_number_alone() -> None:
    assert messages.empty_run(7).run_id == 7, changed("Run.create_empty made a run of a number", MESSAGES)


def test_a_grid_is_what_ours_are() -> None:
    expected = {
        "create_message",
        "get_node_ids",
        "pull_messages",
        "push_messages",
        "run",
        "send_and_receive",
        "set_run",
    }
    assert Grid.__abstractmethods__ == expected, changed(
        f"a Grid was {sorted(expected)}", "server/asking/grid.py, with cli/simulation/one_process.py,"
    )


def test_flower_tells_when_a_node_came_back_and_not_when_it_beats() -> None:
    state = link_state()
    node = state.create_node("owner", "owner", b"key", 30.0)
    seen = []
    for happens in (
        lambda: state.activate_node(node, 30.0),
        lambda: state.acknowledge_node_heartbeat(node, 30.0),
        lambda: state.deactivate_node(node) and state.activate_node(node, 30.0),
    ):
        assert happens()
        (info,) = state.get_node_info(node_ids=[node])
        seen.append(info.last_activated_at)
        time.sleep(0.01)
    assert seen[0] == seen[1] != seen[2], changed(
        "last_activated_at changed when a node came back, and only then", "server/asking/grid.py, Attendance,"
    )


def test_a_node_of_which_flower_tells_nothing_was_never_away() -> None:
    assert messages.NodeInfo(node_id=1).last_activated_at == "", changed(
        "a node without a time had an empty one", "server/asking/grid.py, Attendance,"
    )


# The Control API


@pytest.mark.parametrize(
    ("message", "used"),
    [
        (RegisterNodeRequest, {"public_key", "name"}),
        (UnregisterNodeRequest, {"node_id"}),
        (ListNodesResponse, {"nodes_info"}),
        (messages.NodeInfo, {"public_key", "node_id", "status", "last_activated_at", "name"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_request_has_the_fields_that_are_used(message: Any, used: set[str]) -> None:
    missing = used - fields(message)
    assert not missing, changed(f"{message.__name__} had {missing}", CONTROL)


@pytest.mark.parametrize(
    "call", [ControlHttpClient.ListNodes, ControlHttpClient.RegisterNode, ControlHttpClient.UnregisterNode]
)
def test_a_call_takes_its_request(call: Callable[..., Any]) -> None:
    assert parameters(call) == ["self", "request"], changed(f"{call.__name__} took a request", CONTROL)


def test_a_connection_is_made_of_address_and_certificate() -> None:
    expected = ["server_address", "insecure", "root_certificates", "interceptors", "retry_invoker"]
    assert parameters(ControlHttpClient.from_server_address) == expected, changed(
        f"from_server_address took {expected}", CONTROL
    )


@pytest.mark.parametrize(
    ("answer", "ours"),
    [
        (httpx.ConnectError("nobody"), control.SuperLinkAway),
        (httpx.ReadTimeout("slow"), control.SuperLinkAway),
        (httpx.Response(409), control.SuperLinkRefuses),
    ],
    ids=["nobody there", "slow", "refused"],
)
def test_what_goes_wrong_shows_as_an_error_of_httpx(
    answer: httpx.HTTPError | httpx.Response, ours: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return httpx.Response(answer.status_code, request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    expected = (control.SuperLinkAway, control.SuperLinkRefuses)
    with control.connected("127.0.0.1:1", None) as there, pytest.raises(expected) as caught:
        there.register(b"key", "name")
    assert caught.type is ours, changed("ControlHttpClient raised the errors of httpx", CONTROL)


def test_flowers_own_program_shows_the_secret_that_lies_in_its_home(tmp_path: Path) -> None:
    path = tmp_path / "credentials.yaml"
    path.write_text(control.operator_credentials("127.0.0.1:8000", "the secret"))
    store = FileCredentialStore(path)
    assert store.get(AUTHN_TYPE_STORE_KEY % "127.0.0.1:8000") == AuthnType.OIDC.encode()
    plugin = OidcCliPlugin("127.0.0.1:8000")
    plugin.store = store
    plugin.load_tokens()
    shown = dict(plugin.write_tokens_to_metadata([]))
    assert shown[ACCESS_TOKEN_KEY] == "the secret", changed("`flwr` kept tokens in credentials.yaml", CONTROL)


@pytest.mark.parametrize(
    ("shown", "let_in"), [([], False), ([(ACCESS_TOKEN_KEY, "s" * 40)], True), ([(ACCESS_TOKEN_KEY, "t")], False)]
)
def test_the_superlink_lets_in_who_shows_the_secret(
    shown: list[tuple[str, str | bytes]], let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("flwr.superlink.cli.flower_superlink")
    assert "load_control_authn_plugin" in names_used(module._parse_superlink_lifespan_config), changed(
        "the SuperLink chose who may speak to it by load_control_authn_plugin", SUPERLINK
    )
    monkeypatch.setattr(module, "load_control_authn_plugin", module.load_control_authn_plugin)
    superlink.ask_for("s" * 40)
    plugin = module.load_control_authn_plugin()
    assert plugin.validate_tokens_in_metadata(shown)[0] is let_in
    assert plugin.refresh_tokens(shown) == (None, None)


def test_the_operators_port_is_asked_before_anything_is_done() -> None:
    app = create_app(None)
    names = [getattr(one.cls, "__name__", "") for one in app.user_middleware]
    assert "ControlAuthenticationMiddleware" in names, changed("the Control API was behind a middleware", SUPERLINK)


def test_a_site_that_was_shut_out_is_still_listed_as_such() -> None:
    state = link_state()
    node = state.create_node("owner", "owner", b"key", 30.0)
    state.delete_node("owner", node)
    (info,) = state.get_node_info(node_ids=[node])
    assert (info.public_key, info.status) == (b"key", NodeStatus.UNREGISTERED), changed(
        "an unregistered node was listed with its key and its status", f"{CONTROL}, Control.sites,"
    )


def test_a_key_is_kept_as_pem() -> None:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    assert authority.load_public_pem(control.key_bytes(key).decode()) == key, changed(
        "the SuperLink kept public keys as PEM", f"{CONTROL} with {LOG_LINES}"
    )


# The SuperLink's database


@pytest.mark.federation
def test_the_superlink_waits_for_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower gives a transaction up after five seconds, and with it the message of a site."""
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)
    monkeypatch.setattr(sql_mixin, "create_engine", sql_mixin.__dict__["create_engine"])
    superlink.be_patient(patience._PATIENCE, patience._CONNECTIONS)
    state = SqlLinkState(str(tmp_path / "state.db"), NoOpFederationManager(), InMemoryObjectStore())
    state.initialize()
    told = changed("sql_mixin took its pragmas and its engine from its own names", SUPERLINK)
    # More at once than Flower has connections.
    with ThreadPoolExecutor(20) as pool, sqlite3.connect(tmp_path / "state.db") as other:
        other.execute("BEGIN IMMEDIATE")
        nodes = [pool.submit(state.create_node, "owner", "owner", bytes([key]), 30.0) for key in range(20)]
        time.sleep(6)
        assert not any(node.done() for node in nodes), told
        assert state._engine is not None
        assert state._engine.pool.checkedout() == 20, told  # type: ignore[attr-defined]
        other.rollback()
        assert len({node.result() for node in nodes}) == 20, told


def test_flower_itself_waits_five_seconds() -> None:
    assert dict(SQLITE_PRAGMAS)["busy_timeout"] == "5000", changed(
        "a transaction waited 5 s", "cli/deployment/superlink.py, which may not be needed any more,"
    )
    assert {"SQLITE_PRAGMAS"} <= names_used(sql_mixin._set_sqlite_pragmas), changed(
        "the pragmas were those of sql_mixin", SUPERLINK
    )


def test_the_server_app_asks_again_after_half_a_minute() -> None:
    timeout = inspect.signature(ProtobufClient.__init__).parameters["timeout"].default
    assert patience._PATIENCE < timeout == 30.0, changed(
        "a request was given up after 30 s", "cli/deployment/superlink.py"
    )


# What its programs are told


def test_the_superlink_takes_the_options_it_is_given() -> None:
    given = "--isolation --disable-runtime-dependency-installation --host --port --fleet-api-address --database "
    given += "--health-server-address --insecure --ssl-certfile --ssl-keyfile --ssl-ca-certfile "
    given += "--enable-supernode-auth --superexec-auth-secret-file"
    missing = set(given.split()) - set(_parse_args_run_superlink()._option_string_actions)
    assert not missing, changed(f"flower-superlink had {missing}", "cli/commands/server.py")


def test_the_superexec_takes_the_options_it_is_given() -> None:
    given = {"--runtime-api-address", "--insecure", "--root-certificates", "--superexec-auth-secret-file"}
    missing = given - set(superexec_options()._option_string_actions)
    assert not missing, changed(f"flower-superexec had {missing}", "cli/commands/server.py")


@pytest.mark.parametrize(
    ("command", "options"), [("run", {"--stream", "--run-config"}), ("log", {"--stream"})], ids=["run", "log"]
)
def test_flwr_takes_the_options_it_is_given(command: str, options: set[str]) -> None:
    known = typer.main.get_command(flower_commands).commands[command].params  # type: ignore[attr-defined]
    missing = options - {name for parameter in known for name in parameter.opts}
    assert not missing, changed(f"flwr {command} had {missing}", "cli/commands/run.py")
    words = [parameter.name for parameter in known if parameter.param_type_name == "argument"]
    assert len(words) == 2, changed(f"flwr {command} took two words, the second a connection", "cli/commands/run.py")


# What they say


def test_flwr_says_which_run_it_started() -> None:
    assert "1" in map(log_lines.started_run, strings(inspect.getmodule(flower_run))), changed(
        f"`flwr run` wrote {log_lines.STARTED.pattern!r}", LOG_LINES
    )


class Call(grpc.ServicerContext):  # type: ignore[misc]
    """A call from a site that nobody hears the end of."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.RpcError(details)


Call.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("known", [False, True], ids=["an unknown key", "one that counts as online"])
def test_the_superlink_says_whom_it_turns_away(known: bool, caplog: pytest.LogCaptureFixture) -> None:
    pem = control.key_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    factory = LinkStateFactory(":memory:", NoOpFederationManager(), ObjectStoreFactory())
    if known:
        node = factory.state().create_node("owner", "owner", pem, 30.0)
        assert factory.state().activate_node(node, 30.0)
    servicer = FleetServicer(factory, ObjectStoreFactory(), enable_supernode_auth=True)
    handler = grpc.unary_unary_rpc_method_handler(servicer.ActivateNode)
    details = SimpleNamespace(method="/flwr.proto.Fleet/ActivateNode")
    guarded = RpcErrorTranslationServerInterceptor().intercept_service(lambda _: handler, details)
    caplog.set_level(logging.ERROR, "flwr")
    # Flower's logger passes nothing on.
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        with pytest.raises(grpc.RpcError):
            guarded.unary_unary(ActivateNodeRequest(public_key=pem, heartbeat_interval=30.0), Call())
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    said = [log_lines.turned_away(line) for line in caplog.text.splitlines()]
    assert log_lines.TurnedAway(pem.decode().strip(), known) in said, changed(
        f"the SuperLink named the key that it turned away and why, not {caplog.text!r}", LOG_LINES
    )


def test_the_superlink_says_of_every_request_that_it_came() -> None:
    asked = [text for text in strings(RuntimeHttpClient.AcquireTask) if text.startswith("/v1/")]
    assert asked, changed("programs asked at /v1/…", f"{LOG_LINES}, is_answered_poll,")
    template = next(text for text in strings(uvicorn.protocols.http.h11_impl) if "HTTP/" in text and '"' in text)
    said = template.replace('"1 1 HTTP/1"', f'"POST {asked[0]} HTTP/1.1"')
    told = changed(f"a request was logged with its path and its status, not as {template!r}", LOG_LINES)
    answered = said.removesuffix("1") + "200"
    assert f'"POST {asked[0]}' in said, told
    assert log_lines.is_answered_poll(answered), told
    assert not log_lines.is_answered_poll(said.removesuffix("1") + "401"), told


def link_state() -> SqlLinkState:
    """A SuperLink's own state, in memory."""
    state = SqlLinkState(":memory:", NoOpFederationManager(), InMemoryObjectStore())
    state.initialize()
    return state
