"""An authority of somebody else's, made here as a hospital has one: requests out, certificates in, no key leaves."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cli.deployment import authority
from cli.deployment.address import greet
from cli.deployment.layout import Layout
from cli.deployment.provisioning import provision
from cli.deployment.site_start import as_node_config
from cli.deployment.start_file import SiteFile, read_start_file
from cli.main import main
from client.identity import identify
from client.secure.credentials import credentials_of
from common.config import Config, SettingsError
from common.wire import Task
from tests.cli.test_provision import contents, tls_server

NOW = authority.present()


class Hospital:
    """An authority with RSA keys: a root, and one between it and what it issues."""

    def __init__(self, folder: Path) -> None:
        keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
        self.root = self._authority("Hospital root", keys[0].public_key(), "Hospital root", keys[0])
        self.between = self._authority("Hospital servers", keys[1].public_key(), "Hospital root", keys[0])
        self.key, self.folder = keys[1], folder
        folder.mkdir()
        self.bundle = folder / "hospital.pem"
        self.bundle.write_bytes(authority.pem(self.root) + authority.pem(self.between))

    @staticmethod
    def _authority(name: str, public: rsa.RSAPublicKey, issuer: str, key: rsa.RSAPrivateKey) -> x509.Certificate:
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        return _builder(name, issuer, public).add_extension(constraints, critical=True).sign(key, hashes.SHA256())

    def sign(
        self,
        request: Path,
        *,
        hosts: Sequence[str] | None = None,
        purposes: Iterable[x509.ObjectIdentifier] | None = None,
        name: str = "",
        days: int = 90,
    ) -> Path:
        """Sign what a request asks for; what is given is signed in its place."""
        asked = x509.load_pem_x509_csr(request.read_bytes())
        assert asked.is_signature_valid
        common = name or str(asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        builder = _builder(common, "Hospital servers", asked.public_key(), days)
        for extension in asked.extensions:
            value = extension.value
            if hosts is not None and isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName(authority.alternatives(hosts))
            if purposes is not None and isinstance(value, x509.ExtendedKeyUsage):
                value = x509.ExtendedKeyUsage(purposes)
            builder = builder.add_extension(value, critical=False)
        path = self.folder / f"{request.stem}-{len(list(self.folder.iterdir()))}.crt"
        path.write_bytes(authority.pem(builder.sign(self.key, hashes.SHA256())))
        return path


def _builder(
    name: str, issuer: str, public: rsa.RSAPublicKey | authority.PublicKey, days: int = 90
) -> x509.CertificateBuilder:
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    return (
        x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=200)).not_valid_after(NOW + timedelta(days=days))
    )  # fmt: skip


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path / "hospital")


def make(root: Path, *sites: str, ca: Path | None = None, take: Sequence[Path] = (), renew: bool = False) -> list[str]:
    server = None if (root / "server" / "server.toml").exists() else "fl.example.org:9443"
    return provision(
        Layout(root), server=server, also=(), control="127.0.0.1:9", sites=list(sites), now=NOW,
        outside=ca, certificates=take, renew=renew,
    )  # fmt: skip


def test_requests_go_out_and_no_key_with_them(tmp_path: Path, hospital: Hospital) -> None:
    layout = Layout(tmp_path / "fed")
    said = make(layout.root, "a", ca=hospital.bundle)
    assert not layout.authority_key.exists()
    assert {path.name for path in layout.requests.iterdir()} == {"server.csr", "a.csr"}
    for name, key_path in (("server", layout.server / "server.key"), ("a", layout.kit("a") / "site.key")):
        text = (layout.requests / f"{name}.csr").read_bytes()
        assert b"PRIVATE" not in text
        assert x509.load_pem_x509_csr(text).public_key() == authority.read_private_key(key_path).public_key()
    assert any("server.csr: have it signed, for fl.example.org, localhost, 127.0.0.1" in line for line in said)
    kept = contents(layout.root)
    make(layout.root, "a")
    assert contents(layout.root) == kept, "the same requests wait"


def test_what_was_signed_serves_tls_grpc_and_secure_sums(tmp_path: Path, hospital: Hospital) -> None:
    layout = Layout(tmp_path / "fed")
    make(layout.root, "a", "b", ca=hospital.bundle)
    keys = {path: path.read_bytes() for path in layout.root.rglob("*.key")}
    make(layout.root, take=[hospital.sign(layout.requests / f"{name}.csr") for name in ("server", "a", "b")])
    assert {path: path.read_bytes() for path in layout.root.rglob("*.key")} == keys
    assert list(layout.requests.iterdir()) == []
    certificate, key, ca = layout.server / "server.crt", layout.server / "server.key", layout.kit("a") / "ca.crt"
    with tls_server(certificate, key) as address:
        assert greet(address, ca) == ""
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
    server.stop(None)
    found = {}
    for site in "ab":
        path = layout.kit(site) / "site.toml"
        node_config = tomllib.loads(as_node_config(path, read_start_file(path, SiteFile)))
        found[site] = credentials_of(identify(node_config, 0), Task(Config().for_site(), 1, 1))
    found["a"].check("b", found["b"].certificate, found["b"].sign(b"x"), b"x")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"hosts": ["fl.example.org", "localhost"]}, r"is not issued for 127\.0\.0\.1"),
        ({"purposes": [ExtendedKeyUsageOID.CLIENT_AUTH]}, "is not for TLS servers"),
        ({"days": -1}, "expired on"),
    ],
)
def test_a_wrong_certificate_of_the_server_is_named(
    tmp_path: Path, hospital: Hospital, wrong: dict[str, object], told: str
) -> None:
    layout = Layout(tmp_path / "fed")
    make(layout.root, ca=hospital.bundle)
    kept = contents(layout.root)
    with pytest.raises(SettingsError, match=told):
        make(layout.root, take=[hospital.sign(layout.requests / "server.csr", **wrong)])  # type: ignore[arg-type]
    assert contents(layout.root) == kept


def test_a_certificate_of_another_authority_or_key_is_named(tmp_path: Path, hospital: Hospital) -> None:
    layout, other = Layout(tmp_path / "fed"), Layout(tmp_path / "other")
    make(layout.root, ca=hospital.bundle)
    make(other.root, ca=hospital.bundle)
    stranger = Hospital(tmp_path / "stranger")
    stranger.between = stranger.root
    with pytest.raises(SettingsError, match=r"issued by Hospital servers, which is not in .*ca\.crt"):
        make(layout.root, take=[stranger.sign(layout.requests / "server.csr")])
    with pytest.raises(SettingsError, match=r"\(for fl\.example\.org\) is of no key of this federation"):
        make(layout.root, take=[hospital.sign(other.requests / "server.csr")])


def test_a_site_is_certified_under_its_own_name_alone(tmp_path: Path, hospital: Hospital) -> None:
    layout = Layout(tmp_path / "fed")
    make(layout.root, "a", ca=hospital.bundle)
    request = layout.requests / "a.csr"
    with pytest.raises(SettingsError, match="has the key of a, but the name b"):
        make(layout.root, take=[hospital.sign(request, name="b")])
    with pytest.raises(SettingsError, match="is not for clients"):
        make(layout.root, take=[hospital.sign(request, purposes=[ExtendedKeyUsageOID.SERVER_AUTH])])


def test_an_authority_without_its_root_and_a_second_one_are_refused(tmp_path: Path, hospital: Hospital) -> None:
    alone = tmp_path / "between.pem"
    alone.write_bytes(authority.pem(hospital.between))
    with pytest.raises(SettingsError, match="lacks the root"):
        make(tmp_path / "fed", ca=alone)
    assert not (tmp_path / "fed").exists()
    make(tmp_path / "fed", ca=hospital.bundle)
    with pytest.raises(SettingsError, match="has another authority"):
        make(tmp_path / "fed", ca=Hospital(tmp_path / "second").bundle)


def test_to_renew_is_to_ask_again_for_the_same_key(tmp_path: Path, hospital: Hospital) -> None:
    layout = Layout(tmp_path / "fed")
    make(layout.root, ca=hospital.bundle)
    make(layout.root, take=[hospital.sign(layout.requests / "server.csr")])
    first = (layout.server / "server.crt").read_bytes()
    make(layout.root, renew=True)
    assert (layout.server / "server.crt").read_bytes() == first, "the old one serves until the new one is there"
    make(layout.root, take=[hospital.sign(layout.requests / "server.csr")])
    assert (layout.server / "server.crt").read_bytes() != first


def test_the_command_says_what_is_awaited_and_a_server_does_not_start_without_it(
    tmp_path: Path, hospital: Hospital, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = tmp_path / "fed"
    command = [
        "provision",
        str(fed),
        "--server",
        "127.0.0.1:9443",
        "--control",
        "127.0.0.1:9",
        "--ca",
        str(hospital.bundle),
    ]
    assert main(command) == 0
    assert "certificate of the server: not there yet" in capsys.readouterr().out
    assert main(["server", str(fed / "server" / "server.toml")]) == 2
    assert "is not there: `coterie provision` issues it, or says who has to" in capsys.readouterr().err
    signed = hospital.sign(fed / "requests" / "server.csr")
    assert main(["provision", str(fed), "--certificate", str(signed)]) == 0
    assert "certificate of the server valid until" in capsys.readouterr().out


def test_after_a_theft_the_key_is_new_and_the_authority_stays(
    tmp_path: Path, hospital: Hospital, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout(tmp_path / "fed")
    make(layout.root, ca=hospital.bundle)
    make(layout.root, take=[hospital.sign(layout.requests / "server.csr")])
    assert main(["provision", str(layout.root), "--new-authority"]) == 2
    assert "is of an authority of yours" in capsys.readouterr().err
    stolen = (layout.server / "server.key").read_bytes()
    (layout.server / "server.key").unlink()
    make(layout.root, renew=True)
    assert (layout.server / "server.key").read_bytes() != stolen
    make(layout.root, take=[hospital.sign(layout.requests / "server.csr")])
    new = authority.read_private_key(layout.server / "server.key").public_key()
    assert authority.read_certificate(layout.server / "server.crt").public_key() == new
