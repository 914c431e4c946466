"""Who a site is to the other sites, and whom it believes: certificates by the federation's authority.

The coordinator relays what sites say to each other. It cannot stand in the middle, because it has neither a site's key
nor the authority's, unless whoever provisions the federation gave it that.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from client.identity import Identity
from client.secure.participant import Credentials, Distrust
from common.certificates import is_issued_by
from common.config import SettingsError
from common.foreign import Unusable, named_faults
from common.wire import Task

Read = TypeVar("Read")

_SIGNATURE = ec.ECDSA(hashes.SHA384())


class NoCredentials(SettingsError):
    """A site that cannot say who it is. The message is for the site's own log, `public` for others."""

    def __init__(self, message: str, public: str = "it has no certificate, which secure sums need") -> None:
        super().__init__(message)
        self.public = public


class SiteCredentials:
    """Of a site that somebody set up.

    Parameters
    ----------
    name, key, certificate
        The site's own.
    authority
        Whose certificates it believes: one authority, or the certificates of an outside one.
    """

    def __init__(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        authority: Sequence[x509.Certificate],
    ) -> None:
        self._key, self._authority = key, authority
        self.certificate = certificate.public_bytes(serialization.Encoding.DER)
        # One's own fault is found out here, and not by all the others.
        if certificate.public_key() != key.public_key():
            raise NoCredentials("site.crt is of another key than site.key", "its certificate is of another key")
        try:
            self.check(name, self.certificate, self.sign(b"self"), b"self")
        except Distrust as error:
            raise NoCredentials(f"site.crt: {error}", f"its certificate: {error}") from None

    def sign(self, statement: bytes) -> bytes:
        """Sign with the site's key."""
        return self._key.sign(statement, _SIGNATURE)

    def check(self, name: str, certificate: bytes, signature: bytes, statement: bytes) -> None:
        """Raise `Distrust` unless the site of this name has signed the statement."""
        try:
            with named_faults():
                read = x509.load_der_x509_certificate(certificate)
                if not is_issued_by(read, self._authority):
                    raise Unusable("nobody's word stands behind it")
                uses = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
                names = [str(one.value) for one in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
                public = read.public_key()
        except Unusable:
            raise Distrust(f"{name} has no certificate by this federation's authority") from None
        # The coordinator's own certificate is of the same authority.
        if ExtendedKeyUsageOID.CLIENT_AUTH not in uses or not isinstance(public, ec.EllipticCurvePublicKey):
            raise Distrust(f"{name} comes with a certificate that is not a site's")
        if names != [name]:
            raise Distrust(f"{name} comes with the certificate of {names}")
        _verify(name, public, signature, statement)


class RehearsedCredentials:
    """Of a site of a simulation, which everybody can compute from the seed: it protects nothing, and costs the same."""

    certificate = b""

    def __init__(self, seed: int, name: str) -> None:
        self._seed, self._name = seed, name

    def sign(self, statement: bytes) -> bytes:
        """Sign with the key that the seed gives to the name."""
        return _rehearsed_key(self._seed, self._name).sign(statement, _SIGNATURE)

    def check(self, name: str, certificate: bytes, signature: bytes, statement: bytes) -> None:
        """Raise `Distrust` unless the site of this name has signed the statement."""
        _verify(name, _rehearsed_key(self._seed, name).public_key(), signature, statement)


@lru_cache(maxsize=2048)
def _rehearsed_key(seed: int, name: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(hashlib.sha256(f"rehearsed key\x1f{seed}\x1f{name}".encode()).digest(), "big")
    return ec.derive_private_key(number + 1, ec.SECP384R1())


def _verify(name: str, public: ec.EllipticCurvePublicKey, signature: bytes, statement: bytes) -> None:
    try:
        public.verify(signature, statement, _SIGNATURE)
    except InvalidSignature:
        raise Distrust(f"the signature of {name} is not over what this site was told") from None


def credentials_of(identity: Identity, task: Task) -> Credentials:
    """A site's credentials, from the files that its node config names."""
    if identity.in_engine:
        return RehearsedCredentials(task.settings.seed, identity.name)
    return SiteCredentials(
        identity.name,
        _read(identity.key, _load_key),
        _read(identity.certificate, x509.load_pem_x509_certificate),
        _read(identity.authority, x509.load_pem_x509_certificates),
    )


def source_of(identity: Identity, task: Task, purpose: str) -> Callable[[int], bytes]:
    """Where a site draws its secrets: the operating system; of a simulation, the seed."""
    if not identity.in_engine:
        return os.urandom
    start = f"rehearsed {purpose}\x1f{task.settings.seed}\x1f{identity.name}\x1f{task.round_number}\x1f{task.group}"
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{start}\x1f{count}".encode()).digest(size)

    return draw


def _read(path: Path | None, load: Callable[[bytes], Read]) -> Read:
    if path is None:
        raise NoCredentials("this site was started without site.key, site.crt and ca.crt: secure sums need them")
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        missing = f"{path} cannot be read ({error})"
        raise NoCredentials(f"{missing}: ask the coordinator to run `coterie provision` for this site") from None


def _load_key(content: bytes) -> ec.EllipticCurvePrivateKey:
    is_openssh = b"OPENSSH" in content[:64]
    load = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    key = load(content, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of an elliptic curve")
    return key
