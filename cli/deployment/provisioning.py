"""Makes what a federation needs and does not have yet: authority, server, operator and one kit for each site."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cli.deployment import authority
from cli.deployment.address import CONTROL_PORT, FLEET_PORT, Address, check_host, parse_address
from cli.deployment.kit import operator_file, read_me, server_file, site_file
from cli.deployment.layout import Layout
from cli.deployment.operator_secret import new_operator_secret
from cli.deployment.outside_authority import ALWAYS, adopt, check_outside, request_server, request_site, take
from cli.deployment.start_file import ServerFile, read_start_file
from common.config import SettingsError


def provision(
    layout: Layout,
    *,
    server: str | None,
    also: tuple[str, ...],
    control: str,
    sites: list[str],
    now: datetime,
    renew: bool = False,
    outside: Path | None = None,
    certificates: Sequence[Path] = (),
) -> list[str]:
    """Make what is missing; return what was made, and what was left alone, in words.

    `renew` puts a new certificate of the server in the place of the one that is there, for the same key. `outside` is
    the certificate of an authority that is not the federation's own: it is asked for certificates by requests, and what
    it issued comes in by `certificates`.

    Raises
    ------
    SettingsError
        If the folder belongs to a server at another address, or the server's certificate lacks one of its names.
        Nothing is changed then.
    """
    if layout.server_file.exists():
        settings = read_start_file(layout.server_file, ServerFile)
        _refuse_another_server(layout, settings, server, also)
    else:
        if not server:
            raise SettingsError(f"{layout.root} is new: say where sites will call, as in --server fl.example.org:9092")
        settings = _first_settings(parse_address(server, FLEET_PORT), also, parse_address(control, CONTROL_PORT))
    certificate_path = layout.server / settings.certificate
    if certificate_path.exists() and not renew:
        _refuse_missing_names(certificate_path, settings)
    if outside is not None:
        check_outside(layout, outside, now)
    _make_folders(layout)
    made = adopt(layout, outside) if outside is not None else _ensure_authority(layout, now)
    made += [take(layout, settings, path, now) for path in certificates]
    made += _ensure_server(layout, settings, now, renew=renew)
    made += _ensure_operator(layout, parse_address(control, CONTROL_PORT), settings)
    for site in sites:
        made.append(_ensure_site(layout, settings.address, site))
        made += _ensure_certificate(layout, site)
    return made


def _first_settings(address: Address, also: tuple[str, ...], control: Address) -> ServerFile:
    names = [check_host(address.host), *(check_host(host) for host in also)]
    if not control.is_local or ":" in control.host:
        names.append(check_host(control.host))
    if ":" in control.host:
        # As this machine itself calls it.
        names.append("::1")
    return ServerFile(
        address=str(address),
        names=tuple(dict.fromkeys([*names, *ALWAYS])),
        listen=str(address.everywhere()),
        control=str(control if control.is_local else control.everywhere()),
    )


def _refuse_another_server(layout: Layout, settings: ServerFile, server: str | None, also: tuple[str, ...]) -> None:
    if server and str(parse_address(server, FLEET_PORT)) != settings.address:
        raise SettingsError(
            f"{layout.server_file} says address = {settings.address!r}, not {server!r}. To move the server: set "
            f"address, names and listen there, run `coterie provision` again with --renew and "
            "without --server, and change `server` in the site.toml of every site. Nothing was changed"
        )
    if missing := [host for host in also if host not in settings.names]:
        raise SettingsError(
            f"{', '.join(missing)}: add it to names in {layout.server_file} and run `coterie provision` again with "
            "--renew; sites need nothing new. Nothing was changed"
        )


def _refuse_missing_names(path: Path, settings: ServerFile) -> None:
    missing = {*settings.names, *ALWAYS} - authority.hosts_of(authority.read_certificate(path))
    if missing:
        raise SettingsError(
            f"{path} is not issued for {', '.join(sorted(missing))}: run `coterie provision` again with --renew; "
            "sites need nothing new. Nothing was changed"
        )


def _make_folders(layout: Layout) -> None:
    for folder in (
        layout.root,
        layout.authority.parent,
        layout.server,
        layout.server / "keys",
        layout.operator,
        layout.root / "sites",
    ):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Also if the folder was there before, made by a user whose umask lets others in.
    os.chmod(layout.root, 0o700)


def _ensure_authority(layout: Layout, now: datetime) -> list[str]:
    if layout.authority.exists():
        # The key may be kept elsewhere: only the server's certificate needs it.
        authority.read_authority(layout.authority, now)
        return []
    if layout.authority_key.exists():
        raise SettingsError(
            f"{layout.authority_key} is there, but {layout.authority} is not: put it back (every kit has a copy), or "
            "provision a new federation in an empty folder"
        )
    key = authority.new_key()
    # The key first: a certificate without its key would look like one whose key is kept elsewhere.
    authority.create_file(layout.authority_key, authority.private_pem(key), 0o600)
    authority.create_file(layout.authority, authority.pem(authority.self_signed_authority(key, now)))
    return [f"made the certificate authority {layout.authority} (its key issues certificates: keep it offline)"]


def _ensure_server(layout: Layout, settings: ServerFile, now: datetime, *, renew: bool) -> list[str]:
    made: list[str] = []
    issuer = authority.read_authority(layout.authority, now)
    if not (layout.server / settings.ca).exists():
        authority.create_file(layout.server / settings.ca, layout.authority.read_bytes())
    key_path, certificate_path = layout.server / settings.key, layout.server / settings.certificate
    if not key_path.exists():
        authority.create_file(key_path, authority.private_pem(authority.new_key()), 0o600)
    if layout.requests.is_dir():
        if renew or not certificate_path.exists():
            made += request_server(layout, settings, key_path, renew=renew)
    elif renew or not certificate_path.exists():
        if not layout.authority_key.exists():
            raise SettingsError(f"{layout.authority_key} is needed to issue {certificate_path}: put it back for now")
        certificate = authority.server_certificate(
            authority.read_private_key(layout.authority_key),
            issuer[0],
            authority.read_private_key(key_path).public_key(),
            (*settings.names, *ALWAYS),
            now,
        )
        write = authority.replace_file if renew else authority.create_file
        write(certificate_path, authority.pem(certificate))
        made.append(f"issued {certificate_path} for {', '.join(sorted(authority.hosts_of(certificate)))}")
    else:
        authority.check_server_certificate(certificate_path, issuer, now)
    if not layout.server_file.exists():
        authority.create_file(layout.server_file, server_file(settings).encode(), 0o600)
        made.append(f"made {layout.server_file}: start the server with it")
    return made


def _ensure_operator(layout: Layout, control: Address, settings: ServerFile) -> list[str]:
    return [*_ensure_secret(layout, layout.server / settings.secret), *_ensure_connection(layout, control)]


def _ensure_secret(layout: Layout, server: Path) -> list[str]:
    """The server and its operator have the same secret; who lost one copies it from the other."""
    if server.exists() and layout.operator_secret.exists():
        return []
    known = next((path.read_bytes() for path in (server, layout.operator_secret) if path.exists()), None)
    content = known or new_operator_secret()
    for path in (server, layout.operator_secret):
        if not path.exists():
            authority.create_file(path, content, 0o600)
    return [f"made {layout.operator_secret}: who shows it to the server may start runs and read their logs"]


def _ensure_connection(layout: Layout, control: Address) -> list[str]:
    path = layout.operator / "config.toml"
    if path.exists():
        return []
    copy = layout.operator / "ca.crt"
    if not copy.exists():
        authority.create_file(copy, layout.authority.read_bytes())
    authority.create_file(path, operator_file(control, copy).encode(), 0o600)
    return [f"made {path}: the operator's connection to {control}"]


def _ensure_site(layout: Layout, address: str, site: str) -> str:
    kit, public = layout.kit(site), layout.public_key(site)
    key_path = kit / "site.key"
    if public.exists() and not key_path.exists():
        # Delivered and removed here, as it should be: a second key would shut the site out.
        return f"{site}: has its key already; nothing made (to replace a lost key, remove {public} first)"
    complete = public.exists() and all((kit / name).exists() for name in ("ca.crt", "site.toml", "README.md"))
    if complete:
        return f"{site}: kit is there already, left as it is"
    kit.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not key_path.exists():
        authority.create_file(key_path, authority.private_openssh(authority.new_key()), 0o600)
    for name, content in (
        ("ca.crt", layout.authority.read_bytes()),
        ("site.toml", site_file(address, site).encode()),
        ("README.md", read_me(address, site).encode()),
    ):
        if not (kit / name).exists():
            authority.create_file(kit / name, content)
    if not public.exists():
        # Last: a kit that was cut off half-way is finished by the next call.
        own = authority.read_private_key(key_path).public_key()
        authority.create_file(public, authority.public_openssh(own, site))
    return f"{site}: made {kit}"


def _ensure_certificate(layout: Layout, site: str) -> list[str]:
    """Let the authority say whose key it is, for the other sites: by that they know each other in secure sums."""
    issued, own = layout.certificate(site), layout.kit(site) / "site.crt"
    if not issued.exists():
        if layout.requests.is_dir():
            return request_site(layout, site)
        if not layout.authority_key.exists():
            why = f"{layout.authority_key} is needed to issue one: put it back for now, and run this again"
            return [f"{site}: no certificate, without which it takes no part in secure sums. {why}"]
        certificate = authority.site_certificate(
            authority.read_private_key(layout.authority_key),
            authority.read_certificate(layout.authority),
            authority.read_public_key(layout.public_key(site)),
            site,
        )
        authority.create_file(issued, authority.pem(certificate))
    elif own.exists() or not own.parent.exists():
        return []
    is_delivered = not (own.parent / "site.key").exists()
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not own.exists():
        authority.create_file(own, issued.read_bytes())
    return [f"{site}: issued {own}; bring it to the site, beside its site.key"] if is_delivered else []
