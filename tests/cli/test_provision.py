"""Provisioning: what is made, who may read it, whom it convinces, and that nothing is ever overwritten."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import socket
import ssl
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.cli.supernode.register import try_load_public_key

from cli.deployment import authority
from cli.deployment.address import Address, greet, parse_address
from cli.deployment.layout import Layout
from cli.deployment.operator_secret import read_secret
from cli.deployment.provisioning import provision
from cli.deployment.site_start import as_node_config
from cli.deployment.start_file import ServerFile, SiteFile, check_site_name, read_start_file
from cli.main import main
from client.identity import identify
from client.secure.credentials import credentials_of
from client.secure.participant import Distrust
from common.config import Config, SettingsError
from common.wire import Task

NOW = authority.present()


def make(
    root: Path, *sites: str, server: str | None = "fl.example.org:9443", also: tuple[str, ...] = (), now: datetime = NOW
) -> list[str]:
    # Port 9 is where nobody listens: nothing is ever registered.
    return provision(Layout(root), server=server, also=also, control="127.0.0.1:9", sites=list(sites), now=now)


def contents(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def verify(layout: Layout, host: str, *, ca: Path | None = None, now: datetime = NOW) -> None:
    """As a TLS client does it: chain, time, purpose and name."""
    store = Store([x509.load_pem_x509_certificate((ca or layout.authority).read_bytes())])
    subject = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    leaf = x509.load_pem_x509_certificate((layout.server / "server.crt").read_bytes())
    PolicyBuilder().store(store).time(now.replace(tzinfo=None)).build_server_verifier(subject).verify(leaf, [])


# --- what is made ----------------------------------------------------------------------------------------------


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir(mode=0o777)
    make(root, "a")
    assert root.stat().st_mode & 0o777 == 0o700
    secret = list(root.rglob("*.key"))
    assert {path.name for path in secret} == {"ca.key", "server.key", "site.key"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secret)
    folders = [path for path in root.rglob("*") if path.is_dir()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folders)


@pytest.mark.parametrize("host", ["fl.example.org", "10.1.2.3", "localhost", "127.0.0.1"])
def test_the_server_is_trusted_under_every_name(tmp_path: Path, host: str) -> None:
    make(tmp_path, also=("10.1.2.3",))
    verify(Layout(tmp_path), host)


def test_the_server_is_not_trusted_under_another_name_later_or_by_strangers(tmp_path: Path) -> None:
    make(tmp_path / "ours")
    make(tmp_path / "theirs")
    layout = Layout(tmp_path / "ours")
    with pytest.raises(VerificationError):
        verify(layout, "other.example.org")
    with pytest.raises(VerificationError):
        verify(layout, "fl.example.org", ca=Layout(tmp_path / "theirs").authority)
    with pytest.raises(VerificationError):
        verify(layout, "fl.example.org", now=NOW + timedelta(days=authority.SERVER_DAYS + 1))


def test_flower_takes_the_keys(tmp_path: Path) -> None:
    make(tmp_path, "a")
    layout = Layout(tmp_path)
    registered = try_load_public_key(layout.public_key("a"))
    private = serialization.load_ssh_private_key((layout.kit("a") / "site.key").read_bytes(), None)
    own = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert registered == own
    assert private.curve.name == "secp384r1"  # type: ignore[union-attr]


def test_start_files_are_what_the_commands_read(tmp_path: Path) -> None:
    make(tmp_path, "a")
    server = read_start_file(tmp_path / "server" / "server.toml", ServerFile)
    assert (server.address, server.listen, server.control) == ("fl.example.org:9443", "0.0.0.0:9443", "127.0.0.1:9")
    assert server.names == ("fl.example.org", "localhost", "127.0.0.1")
    site = read_start_file(tmp_path / "sites" / "a" / "site.toml", SiteFile)
    assert (site.site, site.server, site.data) == ("a", "fl.example.org:9443", "")
    assert "coterie site site.toml" in (tmp_path / "sites" / "a" / "README.md").read_text()


def test_a_server_on_this_machine_alone_does_not_listen_to_the_network(tmp_path: Path) -> None:
    make(tmp_path, server="localhost:9443")
    assert read_start_file(tmp_path / "server" / "server.toml", ServerFile).listen == "127.0.0.1:9443"


# --- again -----------------------------------------------------------------------------------------------------


def test_again_adds_sites_and_touches_nothing_else(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    before = contents(tmp_path)
    said = make(tmp_path, "b", "c", server=None)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    new = set(after) - set(before)
    assert new == {
        "server/keys/c.pub",
        "server/keys/c.crt",
        *(f"sites/c/{name}" for name in ("site.key", "site.crt", "site.toml", "ca.crt", "README.md")),
    }
    assert any("b: kit is there already" in line for line in said)


def test_a_delivered_kit_is_not_made_again(tmp_path: Path) -> None:
    make(tmp_path, "a")
    shutil.rmtree(tmp_path / "sites" / "a")
    before = contents(tmp_path)
    said = make(tmp_path, "a", server=None)
    assert contents(tmp_path) == before
    assert any("a: has its key already" in line for line in said)


def test_a_kit_that_was_cut_off_is_finished_with_the_same_key(tmp_path: Path) -> None:
    make(tmp_path, "a")
    layout = Layout(tmp_path)
    public = layout.public_key("a").read_bytes()
    layout.public_key("a").unlink()
    (layout.kit("a") / "README.md").unlink()
    make(tmp_path, "a", server=None)
    assert layout.public_key("a").read_bytes() == public
    assert (layout.kit("a") / "README.md").exists()


@pytest.mark.parametrize(
    ("server", "also", "told"),
    [("moved.example.org:9443", (), "change `server` in the site.toml"), (None, ("10.9.9.9",), "add it to names")],
)
def test_another_host_changes_nothing_and_says_what_to_do(
    tmp_path: Path, server: str | None, also: tuple[str, ...], told: str
) -> None:
    make(tmp_path, "a")
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match=told):
        make(tmp_path, "b", server=server, also=also)
    assert contents(tmp_path) == before


def test_a_new_name_needs_a_new_certificate(tmp_path: Path) -> None:
    make(tmp_path, "a")
    layout = Layout(tmp_path)
    text = layout.server_file.read_text().replace('names = ["fl', 'names = ["new.example.org", "fl')
    layout.server_file.write_text(text)
    with pytest.raises(SettingsError, match=r"not issued for new\.example\.org: .*--renew"):
        make(tmp_path, server=None)
    key = (layout.server / "server.key").read_bytes()
    provision(layout, server=None, also=(), control="127.0.0.1:9", sites=[], now=NOW, renew=True)
    verify(layout, "new.example.org")
    assert (layout.server / "server.key").read_bytes() == key


def test_the_key_of_the_authority_may_be_kept_elsewhere(tmp_path: Path) -> None:
    make(tmp_path, "a")
    layout = Layout(tmp_path)
    layout.authority_key.unlink()
    make(tmp_path, "b", server=None)
    assert layout.public_key("b").exists()
    (layout.server / "server.crt").unlink()
    with pytest.raises(SettingsError, match=r"ca\.key is needed"):
        make(tmp_path, server=None)


def test_an_authority_without_certificate_is_not_replaced(tmp_path: Path) -> None:
    make(tmp_path)
    Layout(tmp_path).authority.unlink()
    with pytest.raises(SettingsError, match="put it back"):
        make(tmp_path, server=None)


def test_create_file_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "key"
    authority.create_file(path, b"first", 0o600)
    with pytest.raises(FileExistsError):
        authority.create_file(path, b"second", 0o600)
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


# --- certificates that are not right ---------------------------------------------------------------------------


def test_an_expired_or_foreign_server_certificate_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "ours")
    make(tmp_path / "theirs")
    ours, theirs = Layout(tmp_path / "ours"), Layout(tmp_path / "theirs")
    path = ours.server / "server.crt"
    authority.check_server_certificate(path, authority.read_authority(ours.authority, NOW), NOW)
    with pytest.raises(SettingsError, match="not issued by this federation's authority"):
        authority.check_server_certificate(path, authority.read_authority(theirs.authority, NOW), NOW)
    later = NOW + timedelta(days=authority.SERVER_DAYS + 1)
    with pytest.raises(SettingsError, match=r"expired on .* run `coterie provision` with --renew"):
        authority.check_server_certificate(path, authority.read_authority(ours.authority, later), later)
    with pytest.raises(SettingsError, match="expired on"):
        authority.read_authority(ours.authority, NOW + timedelta(days=authority.AUTHORITY_DAYS + 1))
    with pytest.raises(SettingsError, match="not of an authority"):
        authority.read_authority(path, NOW)


@contextmanager
def tls_server(certificate: Path, key: Path) -> Iterator[Address]:
    """Answers TLS handshakes, as a SuperLink would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_site_greets_its_own_server_alone(tmp_path: Path) -> None:
    make(tmp_path / "ours")
    make(tmp_path / "theirs")
    ours, theirs = Layout(tmp_path / "ours"), Layout(tmp_path / "theirs")
    with tls_server(ours.server / "server.crt", ours.server / "server.key") as address:
        assert greet(address, ours.authority) == ""
        with pytest.raises(SettingsError, match="is not of the federation this server belongs to"):
            greet(address, theirs.authority)
    assert "refused" in greet(address, ours.authority)


def test_a_site_refuses_an_expired_server_and_one_of_another_name(tmp_path: Path) -> None:
    make(tmp_path / "old", now=NOW - timedelta(days=authority.SERVER_DAYS + 2))
    layout = Layout(tmp_path / "old")
    with (
        tls_server(layout.server / "server.crt", layout.server / "server.key") as address,
        pytest.raises(SettingsError, match=r"expired.*coordinator runs `coterie provision` with --renew"),
    ):
        greet(address, layout.authority)
    make(tmp_path / "new")
    layout = Layout(tmp_path / "new")
    key = authority.new_key()
    issuer = authority.read_private_key(layout.authority_key)
    wrong = authority.server_certificate(
        issuer, authority.read_certificate(layout.authority), key.public_key(), ["fl.example.org"], NOW
    )
    authority.create_file(tmp_path / "wrong.crt", authority.pem(wrong))
    authority.create_file(tmp_path / "wrong.key", authority.private_pem(key), 0o600)
    with (
        tls_server(tmp_path / "wrong.crt", tmp_path / "wrong.key") as address,
        pytest.raises(SettingsError, match="adds this name to `names`"),
    ):
        greet(address, layout.authority)


def test_a_secret_of_the_operator_is_made_again_when_both_copies_are_gone(tmp_path: Path) -> None:
    make(tmp_path)
    layout = Layout(tmp_path)
    old = read_secret(layout.operator_secret)
    for path in (layout.operator_secret, layout.server / "operator.secret"):
        path.unlink()
    make(tmp_path, server=None)
    assert read_secret(layout.operator_secret) == read_secret(layout.server / "operator.secret") != old


def test_after_a_theft_nobody_believes_the_old_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The thief has the server's key and the authority's; sites keep their own keys."""
    make(tmp_path, "a", "b")
    layout, loot = Layout(tmp_path), tmp_path / "loot"
    shutil.copytree(layout.server, loot / "server")
    shutil.copytree(layout.kit("a"), loot / "a")
    stolen_key = authority.read_private_key(layout.authority_key)
    keys = {path: content for path, content in contents(tmp_path).items() if path.endswith(("site.key", ".pub"))}
    shutil.rmtree(layout.kit("b"))  # has been delivered
    assert main(["provision", str(tmp_path), "--new-authority"]) == 0
    said = capsys.readouterr().out
    for site in "ab":
        assert f"{site}: bring {layout.kit(site) / 'ca.crt'} and site.crt" in said
    known = contents(tmp_path)
    assert all(known[path] == content for path, content in keys.items() if path in known)
    assert {path.name for path in layout.kit("b").iterdir()} == {"ca.crt", "site.crt"}
    # In the server's place, with its key and a certificate that is valid for years.
    with tls_server(loot / "server" / "server.crt", loot / "server" / "server.key") as address:
        assert greet(address, loot / "a" / "ca.crt") == ""
        with pytest.raises(SettingsError, match="is not of the federation this server belongs to"):
            greet(address, layout.kit("a") / "ca.crt")
    # Nor can the thief issue one in the name of the new authority.
    own = authority.read_private_key(loot / "server" / "server.key")
    issuer = authority.read_certificate(layout.authority)
    forged = authority.server_certificate(stolen_key, issuer, own.public_key(), ["127.0.0.1"], NOW)
    (loot / "forged.crt").write_bytes(authority.pem(forged))
    with (
        tls_server(loot / "forged.crt", loot / "server" / "server.key") as address,
        pytest.raises(SettingsError, match=r"is not of the federation|refused"),
    ):
        greet(address, layout.kit("a") / "ca.crt")
    assert authority.read_private_key(layout.server / "server.key").public_key() != own.public_key()
    with tls_server(layout.server / "server.crt", layout.server / "server.key") as address:
        assert greet(address, layout.kit("b") / "ca.crt") == ""
        # Not while a server is running, which would go on with what was stolen.
        text = layout.server_file.read_text().replace("127.0.0.1:9", str(address))
        layout.server_file.write_text(text)
        before = contents(tmp_path)
        assert main(["provision", str(tmp_path), "--new-authority"]) == 2
        assert contents(tmp_path) == before
    assert "stop it, then do this" in capsys.readouterr().err
    # In a site's place, in a secure sum: the certificate that was stolen with its key says nothing any more.
    task = Task(Config().for_site(), 1, 1)
    site = read_start_file(layout.kit("a") / "site.toml", SiteFile)
    named = credentials_of(identify(tomllib.loads(as_node_config(layout.kit("a") / "site.toml", site)), 1), task)
    named.check("a", named.certificate, named.sign(b"x"), b"x")
    stolen = x509.load_pem_x509_certificate((loot / "a" / "site.crt").read_bytes())
    with pytest.raises(Distrust, match="has no certificate by this federation's authority"):
        named.check("a", stolen.public_bytes(serialization.Encoding.DER), named.sign(b"x"), b"x")


def test_an_authority_of_the_house_is_not_made_anew_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "a")
    Layout(tmp_path).requests.mkdir()
    before = contents(tmp_path)
    assert main(["provision", str(tmp_path), "--new-authority"]) == 2
    assert "is of an authority of yours" in capsys.readouterr().err
    assert contents(tmp_path) == before


# --- names, addresses, start files -----------------------------------------------------------------------------


def test_names_of_sites_may_have_letters_of_any_language() -> None:
    assert check_site_name("Klinik-Süd_2.b") == "Klinik-Süd_2.b"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", ".hidden", "-x", "a" * 65, "a\n"])
def test_names_that_could_not_be_folders_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="site name"):
        check_site_name(name)


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("fl.example.org", Address("fl.example.org", 9092), "fl.example.org:9092"),
        ("fl.example.org:1", Address("fl.example.org", 1), "fl.example.org:1"),
        ("10.0.0.1:99", Address("10.0.0.1", 99), "10.0.0.1:99"),
        ("::1", Address("::1", 9092), "[::1]:9092"),
        ("[2001:db8::1]:99", Address("2001:db8::1", 99), "[2001:db8::1]:99"),
    ],
)
def test_addresses(text: str, address: Address, written: str) -> None:
    assert parse_address(text, 9092) == address
    assert str(address) == written


@pytest.mark.parametrize(
    ("server", "control", "listen", "listens_for_control", "names"),
    [
        ("[::1]:9443", "[::1]:9", "[::1]:9443", "[::1]:9", {"::1"}),
        ("[2001:db8::1]:9443", "127.0.0.1:9", "[::]:9443", "127.0.0.1:9", {"2001:db8::1"}),
        ("fl.example.org", "[2001:db8::1]:9", "0.0.0.0:9092", "[::]:9", {"fl.example.org", "2001:db8::1", "::1"}),
        ("10.1.2.3", "10.1.2.3:9", "0.0.0.0:9092", "0.0.0.0:9", {"10.1.2.3"}),
    ],
)
def test_where_a_server_listens_follows_from_where_it_is_called(
    tmp_path: Path, server: str, control: str, listen: str, listens_for_control: str, names: set[str]
) -> None:
    layout = Layout(tmp_path)
    provision(layout, server=server, also=(), control=control, sites=["a"], now=NOW)
    made = read_start_file(layout.server_file, ServerFile)
    assert (made.listen, made.control) == (listen, listens_for_control)
    for name in names:
        assert name in authority.hosts_of(authority.read_certificate(layout.server / "server.crt"))
    site = read_start_file(layout.kit("a") / "site.toml", SiteFile)
    assert parse_address(site.server, 1) == parse_address(server, 9092)


def test_how_a_machine_calls_what_listens_everywhere() -> None:
    assert parse_address("[::]:1", 0).to_call == Address("::1", 1)
    assert parse_address("0.0.0.0:1", 0).to_call == Address("127.0.0.1", 1)
    assert parse_address("[2001:db8::1]:1", 0).to_call == Address("2001:db8::1", 1)


@pytest.mark.parametrize("text", ["host:", "host:0", "host:65536", "host:port", ":9092", ""])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_address(text, 9092)


@pytest.mark.parametrize("server", ["0.0.0.0", "bad host", "a..b"])
def test_a_server_that_sites_could_not_call_is_refused(tmp_path: Path, server: str) -> None:
    with pytest.raises(SettingsError):
        make(tmp_path / "new", server=server)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('data-path = "/x"\n', "unknown setting data-path"),
        ("prot = 1\n", "did you mean port?"),
        ("port = 0\n", "port = 0 is not allowed: it takes a whole number ≥ 1, ≤ 65535"),
        ('port = "9094"\n', "port = '9094' is not allowed"),
        ("partition = 3\npartitions = 3\n", "must be less than partitions"),
        ('data = "/x"\npartitions = 3\n', "exclude each other"),
        ("port\n", "not valid TOML"),
    ],
)
def test_start_files_with_mistakes(tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "site.toml"
    path.write_text('site = "a"\nserver = "h:1"\n' + text)
    assert main(["site", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_a_start_file_that_lacks_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "site.toml"
    path.write_text('site = "a"\n')
    assert main(["site", str(path)]) == 2
    assert "server is missing (where the coordinator is: HOST:PORT)" in capsys.readouterr().err


# --- a site that cannot start says what to do --------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    make(tmp_path / "fed", "a", server="localhost:9443")
    data = tmp_path / "data"
    data.mkdir()
    path = tmp_path / "fed" / "sites" / "a" / "site.toml"
    path.write_text(path.read_text().replace('data = ""', f'data = "{data}"'))
    return path


def refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["site", str(path)]) == 2
    return capsys.readouterr().err


def test_no_data(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = kit.read_text()
    kit.write_text(good.replace("/data", "/gone"))
    assert "does not exist; correct it" in refusal(kit, capsys)
    kit.write_text('site = "a"\nserver = "localhost:9443"\n')
    assert "data is empty; set it to the folder" in refusal(kit, capsys)


def test_a_key_that_others_can_read(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = kit.parent / "site.key"
    key.chmod(0o640)
    assert f"run `chmod 600 {key}`" in refusal(kit, capsys)


def test_a_key_that_is_none(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kit.parent / "site.key").write_text("nonsense")
    assert "is not a private key of an elliptic curve" in refusal(kit, capsys)


def test_a_port_that_is_taken(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        kit.write_text(kit.read_text().replace("9094", str(port)))
        said = refusal(kit, capsys)
        assert f"cannot listen on 127.0.0.1:{port}" in said
        assert f"in use by process {os.getpid()} (" in said


def test_a_server_whose_certificate_is_over_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, now=NOW - timedelta(days=authority.SERVER_DAYS + 2))
    assert main(["server", str(tmp_path / "server" / "server.toml")]) == 2
    assert "server.crt expired on" in capsys.readouterr().err


def test_a_server_with_another_key_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    (tmp_path / "server" / "server.key").write_bytes(authority.private_pem(authority.new_key()))
    assert main(["server", str(tmp_path / "server" / "server.toml")]) == 2
    assert "is not the key of" in capsys.readouterr().err


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["provision", str(tmp_path / "f"), "--server", "fl.example.org", "--control", "127.0.0.1:9"]
    assert main([*arguments, "--sites", "a, b"]) == 0
    text = capsys.readouterr().out
    assert "certificate of the server valid until" in text
    assert "registers the sites when it starts" in text
    assert {path.name for path in (tmp_path / "f" / "sites").iterdir()} == {"a", "b"}
    assert main(["provision", str(tmp_path / "g"), "--sites", "a"]) == 2
    assert "say where sites will call" in capsys.readouterr().err


# --- certificates of sites ----------------------------------------------------------------------------------------


def test_every_site_has_a_certificate_by_which_the_others_know_it(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    found = {}
    for site in "ab":
        node_config = tomllib.loads(
            as_node_config(path := tmp_path / "sites" / site / "site.toml", read_start_file(path, SiteFile))
        )
        found[site] = credentials_of(identify(node_config, 0), Task(Config().for_site(), 1, 1))
    found["a"].check("b", found["b"].certificate, found["b"].sign(b"x"), b"x")


def test_a_federation_that_is_older_gets_certificates_by_provisioning_again(tmp_path: Path) -> None:
    """One kit is still here, the other one was delivered; a third site's certificate needs the authority's key."""
    make(tmp_path, "a", "b")
    layout = Layout(tmp_path)
    for site in "ab":
        layout.certificate(site).unlink()
        (layout.kit(site) / "site.crt").unlink()
    shutil.rmtree(layout.kit("b"))
    said = make(tmp_path, "a", "b", server=None)
    assert (layout.kit("a") / "site.crt").read_bytes() == layout.certificate("a").read_bytes()
    assert any("b: issued" in line and "bring it to the site" in line for line in said)
    assert not (layout.kit("b") / "site.key").exists()
    assert [line for line in make(tmp_path, "a", "b", server=None) if "issued" in line] == []
    layout.authority_key.rename(tmp_path / "elsewhere")
    assert any("c: no certificate" in line for line in make(tmp_path, "c", server=None))
