"""Whose word a site takes: keys that the federation's authority has vouched for, and nobody else's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from cli.deployment import authority
from client.identity import Identity, identify
from client.secure.credentials import NoCredentials, RehearsedCredentials, SiteCredentials, credentials_of
from client.secure.participant import Distrust
from common.config import Config
from common.wire import Task

NOW = datetime(2026, 11, 18, tzinfo=UTC)
TASK = Task(Config().for_site(), 1, 1)


class Authority:
    def __init__(self) -> None:
        self.key = authority.new_key()
        self.certificate = authority.self_signed_authority(self.key, NOW)

    def certify(self, key: authority.PrivateKey, name: str) -> x509.Certificate:
        return authority.site_certificate(self.key, self.certificate, key.public_key(), name)

    def site(self, name: str) -> SiteCredentials:
        key = authority.new_key()
        return SiteCredentials(name, key, self.certify(key, name), [self.certificate])


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority()


def test_sites_of_one_federation_believe_each_other(ours: Authority) -> None:
    one, other = ours.site("one"), ours.site("other")
    one.check("other", other.certificate, other.sign(b"keys"), b"keys")
    with pytest.raises(Distrust, match="the signature of other"):
        one.check("other", other.certificate, other.sign(b"keys"), b"other keys")


def test_a_name_is_the_one_that_was_certified(ours: Authority) -> None:
    one, other = ours.site("one"), ours.site("other")
    with pytest.raises(Distrust, match=r"third comes with the certificate of \['other'\]"):
        one.check("third", other.certificate, other.sign(b"keys"), b"keys")


def test_another_authority_is_not_believed(ours: Authority) -> None:
    """A coordinator that invents sites: it may make an authority of the same name, but not with the same key."""
    one, foreign = ours.site("one"), Authority().site("other")
    with pytest.raises(Distrust, match="no certificate by this federation's authority"):
        one.check("other", foreign.certificate, foreign.sign(b"keys"), b"keys")
    with pytest.raises(Distrust, match="no certificate"):
        one.check("other", b"nonsense", b"", b"keys")


def test_a_certificate_that_cannot_be_read_is_not_believed_and_stops_nobody(ours: Authority) -> None:
    """One of version 35 made the library raise an error of its own kind, at every site of the sum."""
    site = ours.site("one")
    broken = site.certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x22")
    assert broken != site.certificate
    with pytest.raises(Distrust, match="one has no certificate"):
        ours.site("two").check("one", broken, site.sign(b"x"), b"x")


def test_the_coordinators_own_certificate_is_no_sites(ours: Authority) -> None:
    """Its key and certificate are on its machine, by the same authority; it names itself as it likes in no other."""
    key = authority.new_key()
    server = authority.server_certificate(ours.key, ours.certificate, key.public_key(), ["fl.example.org"], NOW)
    with pytest.raises(NoCredentials, match="not a site's"):
        SiteCredentials("Coterie server", key, server, [ours.certificate])


def test_a_site_finds_its_own_fault_before_the_others_do(ours: Authority) -> None:
    key = authority.new_key()
    with pytest.raises(NoCredentials, match="another key"):
        SiteCredentials("one", authority.new_key(), ours.certify(key, "one"), [ours.certificate])
    with pytest.raises(NoCredentials, match="certificate of"):
        SiteCredentials("one", key, ours.certify(key, "two"), [ours.certificate])


def test_they_are_read_from_the_files_that_the_node_config_names(ours: Authority, tmp_path: Path) -> None:
    key = authority.new_key()
    for name, content in (
        ("site.key", authority.private_openssh(key)),
        ("site.crt", authority.pem(ours.certify(key, "one"))),
        ("ca.crt", authority.pem(ours.certificate)),
    ):
        (tmp_path / name).write_bytes(content)
    paths = {"key": "site.key", "certificate": "site.crt", "authority": "ca.crt"}
    node_config = {"site": "one", **{name: str(tmp_path / path) for name, path in paths.items()}}
    found = credentials_of(identify(node_config, 0), TASK)
    ours.site("two").check("one", found.certificate, found.sign(b"x"), b"x")
    (tmp_path / "site.crt").unlink()
    with pytest.raises(NoCredentials, match="coterie provision") as told:
        credentials_of(identify(node_config, 0), TASK)
    # What others are told names no path.
    assert str(tmp_path) not in told.value.public
    with pytest.raises(NoCredentials, match="was started without"):
        credentials_of(identify({"site": "one"}, 0), TASK)


def test_in_a_simulation_everybody_can_compute_them() -> None:
    site = Identity("003", None, (3, 5), None, in_engine=True)
    found = credentials_of(site, TASK)
    RehearsedCredentials(TASK.settings.seed, "001").check("003", b"", found.sign(b"x"), b"x")
    with pytest.raises(Distrust):
        RehearsedCredentials(TASK.settings.seed, "001").check("002", b"", found.sign(b"x"), b"x")
    with pytest.raises(Distrust):
        RehearsedCredentials(TASK.settings.seed + 1, "001").check("003", b"", found.sign(b"x"), b"x")
