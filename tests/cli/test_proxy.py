"""A web proxy between site and server: found however it is spelt, by the greeting as by gRPC."""

from __future__ import annotations

import os
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub, add_HealthServicer_to_server

from cli.deployment.address import Address, greet
from cli.deployment.proxy import Proxy, for_programs, proxy_for
from cli.deployment.supervisor import flower_environment
from common.config import SettingsError

# A name that nobody resolves: who reaches it went through the proxy.
FAR = "fl.far.invalid"
NAMES = [
    one
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
    for one in (name, name.upper())
]


class WebProxy:
    """A proxy that knows one far host, which is a port of this machine."""

    def __init__(self, port: int, answer: bytes = b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n") -> None:
        self.asked: list[str] = []
        self._target, self._answer = port, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._tunnel, args=(caller,), daemon=True).start()

    def _tunnel(self, caller: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += caller.recv(1)
        self.asked.append(head.decode())
        caller.sendall(self._answer)
        if b" 200 " not in self._answer:
            caller.close()
            return
        far = socket.create_connection(("127.0.0.1", self._target))
        threading.Thread(target=_pass, args=(far, caller), daemon=True).start()
        _pass(caller, far)

    def close(self) -> None:
        self._listener.close()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        sink.close()


@pytest.fixture
def server() -> Iterator[int]:
    serving = grpc.server(ThreadPoolExecutor(2))
    add_HealthServicer_to_server(health.HealthServicer(), serving)
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    yield port
    serving.stop(None)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "HTTP_PROXY", "grpc_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_greeting_and_grpc_go_through_the_proxy(
    server: int, monkeypatch: pytest.MonkeyPatch, name: str, scheme: str
) -> None:
    proxy = WebProxy(server)
    monkeypatch.setenv(name, f"{scheme}127.0.0.1:{proxy.port}")
    assert greet(Address(FAR, 9092), None) == ""
    assert proxy.asked[0].startswith(f"CONNECT {FAR}:9092 HTTP/1.1\r\n")
    # As programs that are started get it; gRPC reads it when it connects.
    for key, value in flower_environment(Path("home")).items():
        if key in NAMES:
            monkeypatch.setenv(key, value)
    with grpc.insecure_channel(f"{FAR}:9092") as channel:
        HealthStub(channel).Check(HealthCheckRequest(), timeout=20)
    assert len(proxy.asked) == 2
    proxy.close()


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_exceptions_count_in_either_spelling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    proxy = WebProxy(9)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv(name, ".invalid")
    assert greet(Address(FAR, 9092), None) != ""
    assert proxy.asked == []
    proxy.close()


def test_this_machine_is_never_called_through_the_proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert greet(Address("127.0.0.1", server), None) == ""
    spelt = for_programs(os.environ, ["10.0.0.5"])
    assert spelt["no_proxy"] == spelt["NO_PROXY"] == "localhost,127.0.0.1,::1,10.0.0.5"
    assert for_programs({"PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "does not connect to fl.far.invalid:9092: HTTP/1.1 407",
        ),
        (b"\r\n\r\n", "does not connect"),
        (b"x" * 70_000, "does not answer as one"),
    ],
)
def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch, answer: bytes, told: str) -> None:
    proxy = WebProxy(9, answer)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    said = greet(Address(FAR, 9092), None)
    assert f"the proxy 127.0.0.1:{proxy.port} " in said
    assert told in said
    proxy.close()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert "the proxy 127.0.0.1:9 does not answer: Connection refused" in greet(Address(FAR, 9092), None)


def test_a_password_is_shown_to_the_proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = WebProxy(server)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
    assert greet(Address(FAR, 9092), None) == ""
    assert f"Proxy-Authorization: Basic {b64encode(b'me:p@ss').decode()}\r\n" in proxy.asked[0]
    proxy.close()


@pytest.mark.parametrize(
    ("host", "environment", "found"),
    [
        ("a.org", {}, None),
        ("a.org", {"https_proxy": "http://p:1", "HTTPS_PROXY": "http://q:2"}, Proxy("p", 1)),
        ("a.org", {"https_proxy": "", "HTTPS_PROXY": "q:2"}, Proxy("q", 2)),
        ("a.org", {"https_proxy": "http://[2001:db8::1]:3128"}, Proxy("2001:db8::1", 3128)),
        ("a.org", {"https_proxy": "http://p:1", "no_proxy": "b.org, a.org"}, None),
        ("x.a.org", {"https_proxy": "http://p:1", "NO_PROXY": ".A.org"}, None),
        ("10.1.2.3", {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, None),
        ("11.1.2.3", {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, Proxy("p", 1)),
        ("2001:db8::9", {"https_proxy": "http://p:1", "no_proxy": "2001:db8::/32"}, None),
        ("::1", {"https_proxy": "http://p:1"}, None),
        ("a.org", {"https_proxy": "http://p:1", "no_grpc_proxy": "c.org", "no_proxy": "a.org"}, Proxy("p", 1)),
    ],
)
def test_which_proxy(host: str, environment: Mapping[str, str], found: Proxy | None) -> None:
    assert proxy_for(host, environment) == found


@pytest.mark.parametrize("url", ["https://p:1", "socks5://p:1", "http://", "http://p:port"])
def test_a_proxy_that_grpc_does_not_speak_to_is_said(url: str) -> None:
    with pytest.raises(SettingsError, match="https_proxy in the environment must be http://HOST:PORT"):
        proxy_for("a.org", {"HTTPS_PROXY": url})
