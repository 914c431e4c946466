"""`coterie provision`: all keys, certificates and start files of a federation, once and then site by site."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from cli.arguments import Subparsers
from cli.commands.settings import toml_value
from cli.deployment import authority
from cli.deployment.address import CONTROL_PORT, FLEET_PORT, Address, check_host, parse_address
from cli.deployment.start_file import ServerFile, check_site_name, read_start_file
from common.config import SettingsError

# What every certificate names, because the coordinator's own programs call the SuperLink there.
_ALWAYS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Layout:
    """Where things are in the folder of a federation."""

    root: Path

    @property
    def authority_key(self) -> Path:
        return self.root / "ca" / "ca.key"

    @property
    def authority(self) -> Path:
        return self.root / "ca" / "ca.crt"

    @property
    def server(self) -> Path:
        return self.root / "server"

    @property
    def server_file(self) -> Path:
        return self.server / "server.toml"

    @property
    def operator(self) -> Path:
        """The operator's FLWR_HOME."""
        return self.root / "operator"

    def public_key(self, site: str) -> Path:
        return self.server / "keys" / f"{site}.pub"

    def kit(self, site: str) -> Path:
        return self.root / "sites" / site


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "provision",
        help="make keys, certificates and start files for a federation of separate machines",
        description="Makes a certificate authority, the server's certificate and start file, a kit for each site and "
        "the operator's connection. Run it again to add sites: what is there is never overwritten.",
    )
    parser.add_argument("folder", type=Path, help="folder of the federation; it holds private keys, so guard it")
    parser.add_argument("--server", metavar="HOST[:PORT]", help="where sites will call the server; needed only once")
    parser.add_argument(
        "--also", action="append", default=[], metavar="HOST", help="a further name or IP address of the server"
    )
    parser.add_argument("--sites", default="", metavar="A,B,C", help="names of the sites to make kits for")
    parser.add_argument(
        "--remove", default="", metavar="A,B", help="names of sites to shut out for good; the server must be running"
    )
    parser.add_argument(
        "--control",
        default=f"127.0.0.1:{CONTROL_PORT}",
        metavar="HOST:PORT",
        help="where the operator will reach the server (default 127.0.0.1:8000: on the server itself)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Provision, register what is new if the server is up, and say what to do next."""
    sites, removed = _names(options.sites), _names(options.remove)
    layout = Layout(options.folder.absolute())
    if removed:
        return _remove(layout, removed)
    now = authority.present()
    made = provision(
        layout, server=options.server, also=tuple(options.also), control=options.control, sites=sites, now=now
    )
    for line in made:
        print(line)
    _say_validity(layout, now)
    from cli.deployment.registration import register_sites

    server = read_start_file(layout.server_file, ServerFile)
    keys = {path.stem: path for path in sorted((layout.server / server.keys).glob("*.pub"))}
    control = parse_address(server.control, CONTROL_PORT).to_call
    registered = register_sites(control, layout.server / server.ca, keys)
    if registered is None:
        print(f"The server is not running; it registers the sites when it starts: coterie server {layout.server_file}")
    elif registered:
        print(f"Registered with the running server: {', '.join(registered)}")
    if any(layout.kit(site).is_dir() for site in sites):
        print(f"Bring each folder of {layout.root / 'sites'} to its site by a way you trust: it holds the site's key.")
    return 0


def _names(text: str) -> list[str]:
    return [check_site_name(name.strip()) for name in text.split(",") if name.strip()]


def _remove(layout: Layout, sites: list[str]) -> int:
    """Shut sites out: the SuperLink forgets no key, so that one that was unregistered never comes back."""
    from cli.deployment.registration import unregister_site

    server = read_start_file(layout.server_file, ServerFile)
    control = parse_address(server.control, CONTROL_PORT).to_call
    for site in sites:
        key = layout.server / server.keys / f"{site}.pub"
        if unregister_site(control, layout.server / server.ca, key) is None:
            raise SettingsError(f"no server answers at {control}: start it with `coterie server`, then remove {site}")
        key.unlink()
        print(f"{site}: shut out; to take it in again, remove {layout.kit(site)} and provision it anew, with a new key")
    return 0


def provision(
    layout: Layout, *, server: str | None, also: tuple[str, ...], control: str, sites: list[str], now: datetime
) -> list[str]:
    """Make what is missing; return what was made, and what was left alone, in words.

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
    if certificate_path.exists():
        _refuse_missing_names(certificate_path, settings)
    _make_folders(layout)
    made = [*_ensure_authority(layout, now), *_ensure_server(layout, settings, now)]
    made += _ensure_operator(layout, parse_address(control, CONTROL_PORT))
    for site in sites:
        made.append(_ensure_site(layout, settings.address, site))
    return made


def _first_settings(address: Address, also: tuple[str, ...], control: Address) -> ServerFile:
    names = [check_host(address.host), *(check_host(host) for host in also)]
    if not control.is_local:
        names.append(check_host(control.host))
    return ServerFile(
        address=str(address),
        names=tuple(dict.fromkeys([*names, *_ALWAYS])),
        listen=str(Address("127.0.0.1" if address.is_local else "0.0.0.0", address.port)),
        control=str(control if control.is_local else Address("0.0.0.0", control.port)),
    )


def _refuse_another_server(layout: Layout, settings: ServerFile, server: str | None, also: tuple[str, ...]) -> None:
    if server and str(parse_address(server, FLEET_PORT)) != settings.address:
        raise SettingsError(
            f"{layout.server_file} says address = {settings.address!r}, not {server!r}. To move the server: set "
            f"address, names and listen there, remove {layout.server / settings.certificate}, run `coterie provision` "
            "again without --server, and change `server` in the site.toml of every site. Nothing was changed"
        )
    if missing := [host for host in also if host not in settings.names]:
        raise SettingsError(
            f"{', '.join(missing)}: add it to names in {layout.server_file}, remove "
            f"{layout.server / settings.certificate} and run `coterie provision` again; sites need nothing new. "
            "Nothing was changed"
        )


def _refuse_missing_names(path: Path, settings: ServerFile) -> None:
    missing = {*settings.names, *_ALWAYS} - authority.hosts_of(authority.read_certificate(path))
    if missing:
        raise SettingsError(
            f"{path} is not issued for {', '.join(sorted(missing))}: remove it (not its key) and run "
            "`coterie provision` again; sites need nothing new. Nothing was changed"
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


def _ensure_server(layout: Layout, settings: ServerFile, now: datetime) -> list[str]:
    made: list[str] = []
    issuer = authority.read_authority(layout.authority, now)
    if not (layout.server / settings.ca).exists():
        authority.create_file(layout.server / settings.ca, authority.pem(issuer))
    key_path, certificate_path = layout.server / settings.key, layout.server / settings.certificate
    if not key_path.exists():
        authority.create_file(key_path, authority.private_pem(authority.new_key()), 0o600)
    if not certificate_path.exists():
        if not layout.authority_key.exists():
            raise SettingsError(f"{layout.authority_key} is needed to issue {certificate_path}: put it back for now")
        certificate = authority.server_certificate(
            authority.read_private_key(layout.authority_key),
            issuer,
            authority.read_private_key(key_path).public_key(),
            (*settings.names, *_ALWAYS),
            now,
        )
        authority.create_file(certificate_path, authority.pem(certificate))
        made.append(f"issued {certificate_path} for {', '.join(sorted(authority.hosts_of(certificate)))}")
    else:
        authority.check_server_certificate(certificate_path, issuer, now)
    if not layout.server_file.exists():
        authority.create_file(layout.server_file, _server_file(settings).encode(), 0o600)
        made.append(f"made {layout.server_file}: start the server with it")
    return made


def _server_file(settings: ServerFile) -> str:
    lines = ["# Start file of the server: coterie server server.toml. Paths start at this folder.", ""]
    for key, field in ServerFile.model_fields.items():
        value = getattr(settings, key)
        text = f"[{', '.join(map(toml_value, value))}]" if isinstance(value, tuple) else toml_value(value)
        lines += [f"# {field.description}", f"{key} = {text}"]
    return "\n".join(lines) + "\n"


def _ensure_operator(layout: Layout, control: Address) -> list[str]:
    path = layout.operator / "config.toml"
    if path.exists():
        return []
    copy = layout.operator / "ca.crt"
    if not copy.exists():
        authority.create_file(copy, layout.authority.read_bytes())
    text = (
        "# The operator's connection: coterie run CONFIG.toml --on FOLDER, or flwr … with FLWR_HOME=this folder.\n"
        '[superlink]\ndefault = "coterie"\n\n'
        f"[superlink.coterie]\naddress = {toml_value(str(control))}\nroot-certificates = {toml_value(str(copy))}\n\n"
        "# For a server that was started with --insecure.\n"
        f"[superlink.coterie-insecure]\naddress = {toml_value(str(control))}\ninsecure = true\n"
    )
    authority.create_file(path, text.encode(), 0o600)
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
        ("site.toml", _site_file(address, site).encode()),
        ("README.md", _KIT_README.format(site=site, address=address).encode()),
    ):
        if not (kit / name).exists():
            authority.create_file(kit / name, content)
    if not public.exists():
        # Last: a kit that was cut off half-way is finished by the next call.
        own = authority.read_private_key(key_path).public_key()
        authority.create_file(public, authority.public_openssh(own, site))
    return f"{site}: made {kit}"


def _site_file(address: str, site: str) -> str:
    return f"""\
# Start file of this site: coterie site site.toml. Paths start at this folder.
site = {toml_value(site)}
server = {toml_value(address)}

# Your data: a folder with one sub-folder per class, a CSV manifest, an .npz file or a table.
# It never leaves this machine.
data = ""

# Folder for embeddings and decoded images; empty: the user's cache folder.
cache = ""

# Folder for the final model of every run this site took part in.
models = "models"

# Local port of the SuperNode; each on one machine needs its own.
port = 9094
"""


_KIT_README = """\
# Site {site}

This folder lets one site take part in the federation at {address}. `site.key` proves that it is you: keep it
to yourself.

1. Install Coterie on the machine that has the data.
2. Set `data` in `site.toml` to your data.
3. `coterie site check site.toml` tells, without any network, what it found and how long a round would take.
4. Start:

```
coterie site site.toml
```
"""


def _say_validity(layout: Layout, now: datetime) -> None:
    settings = read_start_file(layout.server_file, ServerFile)
    for what, path in (("authority", layout.authority), ("server", layout.server / settings.certificate)):
        certificate: x509.Certificate = authority.read_certificate(path)
        until = certificate.not_valid_after_utc
        print(f"certificate of the {what} valid until {until:%Y-%m-%d} ({authority.days_left(certificate, now)} days)")
