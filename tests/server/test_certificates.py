"""The server's certificate is renewed while the server runs: what new callers are shown, and what is refused."""

from __future__ import annotations

import importlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import uvicorn
from cryptography import x509
from flwr.supercore import grpc as flower_grpc

from cli.commands.server import _expiry_watch
from cli.deployment import authority
from cli.deployment.layout import Layout
from cli.deployment.provisioning import provision
from cli.deployment.start_file import ServerFile, read_start_file
from cli.main import main
from server.flower.certificates import Renewal
from tests.support.contract import changed, names_used
from tests.support.federation import until

NOW = authority.present()


@pytest.fixture
def fed(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "fed")
    # Port 9 is where nobody listens: nothing is ever registered.
    provision(layout, server="localhost:9443", also=(), control="127.0.0.1:9", sites=["a"], now=NOW)
    return layout


def renew(fed: Layout) -> None:
    assert main(["provision", str(fed.root), "--renew"]) == 0


def kept(fed: Layout) -> x509.Certificate:
    return authority.read_certificate(fed.server / "server.crt")


def shown(port: int) -> int:
    """The serial number of the certificate that a new caller is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain) as secured:
        der = secured.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


@pytest.fixture
def renewal(fed: Layout, monkeypatch: pytest.MonkeyPatch) -> Renewal:
    config = importlib.import_module("uvicorn.config")
    for module, name in ((grpc, "ssl_server_credentials"), (config, "create_ssl_context")):
        monkeypatch.setattr(module, name, getattr(module, name))
    made = Renewal(fed.server / "server.crt", fed.server / "server.key")
    monkeypatch.setattr(made, "_watch", lambda: None)
    made.take_part()
    return made


def serve_grpc(fed: Layout) -> tuple[int, Callable[[], object]]:
    """Flower's own server for sites, as its SuperLink makes it."""
    files = tuple((fed.server / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key"))
    server = flower_grpc.generic_create_grpc_server(
        (None, lambda servicer, to: None), "127.0.0.1:0", certificates=files
    )
    server.start()
    return int(server.bound_address.rpartition(":")[2]), lambda: server.stop(0)


def serve_http(fed: Layout) -> tuple[int, Callable[[], object]]:
    """What serves operator and ServerApp."""

    async def app(scope: object, receive: object, send: object) -> None: ...

    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, lifespan="off", log_level="error",
            ssl_certfile=str(fed.server / "server.crt"), ssl_keyfile=str(fed.server / "server.key"),
        )
    )  # fmt: skip
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, 20, "it serves")

    def stop() -> None:
        server.should_exit = True
        thread.join(20)

    return server.servers[0].sockets[0].getsockname()[1], stop


@pytest.mark.parametrize("serve", [serve_grpc, serve_http])
def test_a_new_certificate_is_shown_to_who_calls_next(
    fed: Layout, renewal: Renewal, serve: Callable[[Layout], tuple[int, Callable[[], object]]]
) -> None:
    port, stop = serve(fed)
    try:
        before = kept(fed).serial_number
        assert shown(port) == before
        renew(fed)
        after = kept(fed).serial_number
        assert after != before
        renewal.look()
        assert shown(port) == after
    finally:
        stop()


def test_who_is_connected_stays_connected(fed: Layout, renewal: Renewal) -> None:
    port, stop = serve_http(fed)
    context = ssl.create_default_context(cafile=str(fed.authority))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            renew(fed)
            renewal.look()
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert secured.recv(12).startswith(b"HTTP/1.1")
    finally:
        stop()


def test_what_does_not_fit_is_not_taken(fed: Layout, renewal: Renewal, capsys: pytest.CaptureFixture[str]) -> None:
    port, stop = serve_grpc(fed)
    try:
        before = kept(fed).serial_number
        good = fed.server / "good.crt"
        shutil.copy(fed.server / "server.crt", good)
        for content in (b"", b"no certificate", fed.authority.read_bytes()):
            (fed.server / "server.crt").write_bytes(content)
            renewal.look()
            renewal.look()
            assert capsys.readouterr().err.count("is not taken") == 1
            assert shown(port) == before
        (fed.server / "server.crt").unlink()
        renewal.look()
        assert shown(port) == before
        good.rename(fed.server / "server.crt")
        renew(fed)
        renewal.look()
        assert "new connections are shown it" in capsys.readouterr().err
        assert shown(port) == kept(fed).serial_number != before
    finally:
        stop()


def test_flower_makes_its_credentials_where_they_are_replaced() -> None:
    ours = "server/flower/certificates.py"
    used = names_used(flower_grpc.generic_create_grpc_server)
    assert "ssl_server_credentials" in used, changed("servers for sites used grpc.ssl_server_credentials", ours)
    assert "create_ssl_context" in names_used(uvicorn.Config.load), changed(
        "uvicorn made its TLS context by create_ssl_context", ours
    )


def test_renewing_keeps_the_key_and_the_authority(fed: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    files = {path: path.read_bytes() for path in fed.root.rglob("*") if path.is_file()}
    renew(fed)
    changed_files = [path for path in files if path.read_bytes() != files[path]]
    assert changed_files == [fed.server / "server.crt"]
    assert set(files) == {path for path in fed.root.rglob("*") if path.is_file()}
    assert "issued" in capsys.readouterr().out
    assert main(["provision", str(fed.root)]) == 0
    fed.authority_key.unlink()
    assert main(["provision", str(fed.root), "--renew"]) == 2
    assert "put it back for now" in capsys.readouterr().err


def test_a_new_name_is_added_by_renewing(fed: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    text = fed.server_file.read_text()
    fed.server_file.write_text(text.replace('names = ["localhost"', 'names = ["new.example.org", "localhost"'))
    assert main(["provision", str(fed.root)]) == 2
    assert "--renew" in capsys.readouterr().err
    renew(fed)
    assert "new.example.org" in authority.hosts_of(kept(fed))


def test_the_end_of_a_certificate_is_told_every_day_of_the_last_thirty(fed: Layout) -> None:
    watch = _expiry_watch(fed.server_file, read_start_file(fed.server_file, ServerFile))
    end = kept(fed).not_valid_after_utc
    said = []
    for hour in range(-40 * 24, 48):
        said += [(hour, text) for text in watch.look(end + timedelta(hours=hour))]
    first = said[0][0] / 24
    assert -30 <= first <= -28
    assert 30 <= len(said) <= 33
    assert all(f"{fed.server / 'server.crt'} " in text and "--renew" in text for _, text in said)
    assert "ends in 1 days" in said[-4][1] or "ends in 1 days" in said[-3][1]
    assert "is over, and sites refuse this server" in said[-1][1]
    # A new one ends it.
    renew(fed)
    assert watch.look(NOW + timedelta(days=40)) == []


def test_a_certificate_is_handed_to_grpc_once(fed: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gRPC is given replaces what handshakes under way refer to: for each caller anew, that ends the server."""
    asked: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, fetch, _: asked.append(fetch))
    certificate, key = fed.server / "server.crt", fed.server / "server.key"
    renewal = Renewal(certificate, key)
    renewal.grpc_credentials([(key.read_bytes(), certificate.read_bytes())])
    (fetch,) = asked
    assert fetch() is None
    renew(fed)
    renewal.look()
    assert fetch() is not None
    assert fetch() is None
