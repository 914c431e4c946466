"""Keys and certificates of a federation: one authority, one server, a key pair for each site."""

from __future__ import annotations

import base64
import ipaddress
import os
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cli.deployment.address import is_ip
from common.certificates import is_issued_by
from common.config import SettingsError
from common.foreign import Unusable, named_faults, read_bytes

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730

# A site's clock may be behind that of the coordinator.
_HEAD_START = timedelta(days=1)

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def new_key() -> PrivateKey:
    """Draw a key on the curve P-384, which TLS and Flower's node authentication both take."""
    return ec.generate_private_key(ec.SECP384R1())


def self_signed_authority(key: PrivateKey, now: datetime) -> x509.Certificate:
    """Make the certificate of a new authority; its name is drawn, so that two federations are told apart."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Coterie federation {secrets.token_hex(4)}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    authority_key: PrivateKey, authority: x509.Certificate, public: PublicKey, hosts: Iterable[str], now: datetime
) -> x509.Certificate:
    """Issue the certificate of the server for all names and IP addresses it is called by."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie server")])
    signer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(name, authority.subject, public, now, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(alternatives(hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Write names and IP addresses as certificates have them."""
    return [
        x509.IPAddress(ipaddress.ip_address(host)) if is_ip(host) else x509.DNSName(host)
        for host in dict.fromkeys(hosts)
    ]


def site_certificate(
    authority_key: PrivateKey, authority: x509.Certificate, public: PublicKey, site: str
) -> x509.Certificate:
    """Say by the authority's word that a key is a site's; it lasts as long as the authority."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def hosts_of(certificate: x509.Certificate) -> set[str]:
    """Return the names and IP addresses a certificate is issued for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def read_certificate(path: Path) -> x509.Certificate:
    """Read the first certificate of a PEM file."""
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Read all certificates of a PEM file, one at least."""
    try:
        content = read_bytes(path)
        with named_faults():
            certificates = x509.load_pem_x509_certificates(content)
            for certificate in certificates:
                # Each part is parsed when it is asked for, and may be damaged for itself.
                _ = certificate.extensions, certificate.subject, certificate.issuer, certificate.public_key()
            return certificates
    except OSError as error:
        raise SettingsError(f"cannot read the certificate {path}: {error.strerror}") from None
    except Unusable:
        raise SettingsError(f"{path} is not a certificate in PEM form") from None


def read_authority(path: Path, now: datetime) -> list[x509.Certificate]:
    """Read the federation's authority, or raise if it is no authority or its time is over.

    One of outside may have several certificates: its root, and those between it and what it issues.
    """
    certificates = read_certificates(path)
    for certificate in certificates:
        try:
            if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                raise SettingsError(
                    f"{path} is the certificate of a server, not of an authority: take the kit's ca.crt"
                )
        except x509.ExtensionNotFound:
            raise SettingsError(f"{path} is not the certificate of an authority: take the kit's ca.crt") from None
        if problem := out_of_time(certificate, now):
            raise SettingsError(f"{path} {problem}: the coordinator provisions the federation anew, in an empty folder")
    return certificates


def check_server_certificate(path: Path, authority: Sequence[x509.Certificate], now: datetime) -> x509.Certificate:
    """Read the server's certificate, or raise if its time is over or another authority issued it."""
    if not path.exists():
        raise SettingsError(f"{path} is not there: `coterie provision` issues it, or says who has to")
    certificate = read_certificate(path)
    again = "run `coterie provision` with --renew; sites need nothing new"
    if problem := out_of_time(certificate, now):
        raise SettingsError(f"{path} {problem}: {again}")
    if not is_issued_by(certificate, authority):
        raise SettingsError(f"{path} was not issued by this federation's authority: {again}")
    return certificate


def read_private_key(path: Path) -> PrivateKey:
    """Read a private key in PEM or OpenSSH form that nobody else on this machine can read."""
    try:
        mode = path.stat().st_mode
        content = read_bytes(path)
    except OSError as error:
        raise SettingsError(f"cannot read the private key {path}: {error.strerror}") from None
    if mode & 0o077:
        raise SettingsError(f"the private key {path} can be read by others: run `chmod 600 {path}`")
    load = serialization.load_ssh_private_key if b"OPENSSH" in content[:64] else serialization.load_pem_private_key
    try:
        with named_faults():
            key = load(content, None)
    except Unusable:
        key = None
    if not isinstance(key, PrivateKey):
        raise SettingsError(f"{path} is not a private key of an elliptic curve without a password")
    return key


def read_public_key(path: Path) -> PublicKey:
    """Read a site's public key in OpenSSH form."""
    try:
        content = read_bytes(path)
        with named_faults():
            key = serialization.load_ssh_public_key(content)
    except OSError as error:
        raise SettingsError(f"cannot read the public key {path}: {error.strerror}") from None
    except Unusable:
        key = None
    if not isinstance(key, PublicKey):
        raise SettingsError(
            f"{path} is not the public key of an elliptic curve in OpenSSH form (ssh-keygen -t ecdsa -b 384)"
        )
    return key


def load_public_pem(text: str) -> PublicKey:
    """Read a public key as Flower logs it."""
    key = serialization.load_pem_public_key(text.encode())
    if not isinstance(key, PublicKey):
        raise ValueError("not the public key of an elliptic curve")
    return key


def pem(certificate: x509.Certificate) -> bytes:
    """Write a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: PrivateKey) -> bytes:
    """Write a private key as TLS programs read it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def private_openssh(key: PrivateKey) -> bytes:
    """Write a private key as Flower's SuperNode reads it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def public_openssh(key: PublicKey, comment: str) -> bytes:
    """Write a public key as `flwr supernode register` reads it."""
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + f" {comment}\n".encode()


def fingerprint(key: PublicKey) -> str:
    """Return what `ssh-keygen -l` shows of a key, for people to compare."""
    digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def create_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet; it appears whole or not at all, and never in the place of another."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Put a new file in the place of one that is there; whoever reads it finds the one or the other."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    create_file(fresh, content, mode)
    os.replace(fresh, path)


def days_left(certificate: x509.Certificate, now: datetime) -> int:
    """Return the whole days until a certificate ends."""
    return (certificate.not_valid_after_utc - now).days


def present() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


def out_of_time(certificate: x509.Certificate, now: datetime) -> str:
    """Say why a certificate is not valid at a moment; empty: it is."""
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d}; is the clock of this machine right"
    return ""


def _builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _HEAD_START)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
