"""An authority that is not the federation's own: requests go out to it, certificates come in, and no key leaves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cli.deployment import authority
from cli.deployment.layout import Layout
from cli.deployment.start_file import ServerFile
from common.certificates import is_issued_by
from common.config import SettingsError

# What every certificate of a server names, because the coordinator's own programs call the SuperLink there.
ALWAYS = ("localhost", "127.0.0.1")


def check_outside(layout: Layout, path: Path, now: datetime) -> None:
    """Raise unless this authority can be that of the federation, before anything is written."""
    found = authority.read_authority(path, now)
    if not any(is_issued_by(one, [one]) for one in found):
        raise SettingsError(f"{path} lacks the root, by which programs know the others: put all into one file")
    if layout.authority.exists() and layout.authority.read_bytes() != path.read_bytes():
        raise SettingsError(f"{layout.root} has another authority, which every kit knows: provision an empty folder")


def adopt(layout: Layout, path: Path) -> list[str]:
    """Let an outside authority be that of the federation."""
    layout.requests.mkdir(mode=0o700, exist_ok=True)
    if layout.authority.exists():
        return []
    authority.create_file(layout.authority, path.read_bytes())
    return [f"took the authority of {path}: it signs what is in {layout.requests}"]


def request_server(layout: Layout, settings: ServerFile, key_path: Path, *, renew: bool) -> list[str]:
    """Write the request for the server's certificate."""
    path = layout.requests / "server.csr"
    hosts = tuple(dict.fromkeys((*settings.names, *ALWAYS)))
    if renew or not path.exists():
        alternatives = x509.SubjectAlternativeName(authority.alternatives(hosts))
        request = _request(key_path, settings.names[0], ExtendedKeyUsageOID.SERVER_AUTH, [alternatives])
        authority.replace_file(path, request)
    return [
        f"{path}: have it signed, for {', '.join(hosts)}; then `coterie provision {layout.root} --certificate FILE`"
    ]


def request_site(layout: Layout, site: str) -> list[str]:
    """Write the request for the certificate by which other sites know this one."""
    path, key_path = layout.requests / f"{site}.csr", layout.kit(site) / "site.key"
    if not path.exists() and not key_path.exists():
        how = f"there: openssl req -new -key site.key -subj /CN={site}"
        return [f"{site}: its key is at the site alone, and so the request for its certificate is made {how}"]
    if not path.exists():
        authority.create_file(path, _request(key_path, site, ExtendedKeyUsageOID.CLIENT_AUTH, []))
    return [f"{path}: have it signed, if there will be secure sums; the site takes part in others without"]


def take(layout: Layout, settings: ServerFile, path: Path, now: datetime) -> str:
    """Put a certificate where it belongs, which its key tells, or raise saying what is wrong with it."""
    certificates = authority.read_certificates(path)
    issuers = authority.read_authority(layout.authority, now)
    owner = _owner(layout, settings, path, certificates[0])
    if problem := authority.out_of_time(certificates[0], now):
        raise SettingsError(f"{path} {problem}; nothing was changed")
    if not is_issued_by(certificates[0], issuers):
        told = f"{path} was issued by {_common_name(certificates[0].issuer)}"
        raise SettingsError(f"{told}, which is not in {layout.authority}; nothing was changed")
    content = b"".join(map(authority.pem, certificates))
    if not owner:
        _check_server(path, certificates[0], settings)
        authority.replace_file(layout.server / settings.certificate, content)
        (layout.requests / "server.csr").unlink(missing_ok=True)
        return f"took {path} as {layout.server / settings.certificate}"
    _check_site(path, certificates[0], owner)
    authority.replace_file(layout.certificate(owner), content)
    (layout.requests / f"{owner}.csr").unlink(missing_ok=True)
    if not layout.kit(owner).is_dir():
        return f"took {path} as {layout.certificate(owner)}; bring it to the site as site.crt, beside its site.key"
    authority.replace_file(layout.kit(owner) / "site.crt", content)
    return f"took {path} as {layout.kit(owner) / 'site.crt'}"


def _owner(layout: Layout, settings: ServerFile, path: Path, certificate: x509.Certificate) -> str:
    """The site whose key a certificate is of; empty: the server's."""
    key_path = layout.server / settings.key
    if not key_path.exists():
        raise SettingsError(f"{layout.root} has made no request yet: `coterie provision` with --ca comes first")
    if authority.read_private_key(key_path).public_key() == certificate.public_key():
        return ""
    for public in sorted((layout.server / settings.keys).glob("*.pub")):
        if authority.read_public_key(public) == certificate.public_key():
            return public.stem
    told = f"{path} (for {_common_name(certificate.subject)}) is of no key of this federation"
    raise SettingsError(f"{told}: have a request in {layout.requests} signed as it is; nothing was changed")


def _check_server(path: Path, certificate: x509.Certificate, settings: ServerFile) -> None:
    missing = {*settings.names, *ALWAYS} - authority.hosts_of(certificate)
    if missing:
        why = "the request has all names in it" if not missing & set(ALWAYS) else "the server's own programs call there"
        raise SettingsError(f"{path} is not issued for {', '.join(sorted(missing))}: {why}; nothing was changed")
    if not _serves(certificate, ExtendedKeyUsageOID.SERVER_AUTH, if_silent=True):
        raise SettingsError(f"{path} is not for TLS servers (serverAuth): have it issued for that; nothing was changed")


def _check_site(path: Path, certificate: x509.Certificate, site: str) -> None:
    if (named := _common_name(certificate.subject)) != site:
        raise SettingsError(f"{path} has the key of {site}, but the name {named}; nothing was changed")
    if not _serves(certificate, ExtendedKeyUsageOID.CLIENT_AUTH, if_silent=False):
        raise SettingsError(f"{path} is not for clients (clientAuth): have it issued for that; nothing was changed")


def _serves(certificate: x509.Certificate, purpose: x509.ObjectIdentifier, *, if_silent: bool) -> bool:
    """Whether a certificate is no authority's and for a purpose; who names no purpose may mean all."""
    try:
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        pass
    try:
        return purpose in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return if_silent


def _common_name(name: x509.Name) -> str:
    return ", ".join(str(one.value) for one in name.get_attributes_for_oid(NameOID.COMMON_NAME)) or "nobody by name"


def _request(key_path: Path, name: str, purpose: x509.ObjectIdentifier, more: Iterable[x509.ExtensionType]) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in (x509.BasicConstraints(ca=False, path_length=None), x509.ExtendedKeyUsage([purpose]), *more):
        builder = builder.add_extension(extension, critical=False)
    signed = builder.sign(authority.read_private_key(key_path), hashes.SHA384())
    return signed.public_bytes(serialization.Encoding.PEM)
