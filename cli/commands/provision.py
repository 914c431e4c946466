"""`coterie provision`: all keys, certificates and start files of a federation, once and then site by site."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from cryptography import x509

from cli.arguments import Subparsers
from cli.deployment import authority
from cli.deployment.address import CONTROL_PORT, greet, parse_address
from cli.deployment.layout import Layout
from cli.deployment.operator_secret import read_secret
from cli.deployment.provisioning import provision
from cli.deployment.reissue import reissue
from cli.deployment.start_file import ServerFile, check_site_name, read_start_file
from common.config import SettingsError


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "provision",
        help="make keys, certificates and start files for a federation of separate machines",
        description="Makes a certificate authority, the server's certificate and start file, a kit for each site and "
        "the operator's connection. Run it again to add sites: what is there is never overwritten, "
        "but for the server's certificate with --renew, and for what --new-authority replaces.",
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
        "--renew",
        action="store_true",
        help="issue the server a new certificate, for the names in server.toml; a running server takes it by itself",
    )
    parser.add_argument(
        "--new-authority",
        action="store_true",
        help="after the theft of ca.key or server.key: new keys and certificates of authority and server; sites keep "
        "their keys and need a new ca.crt; the server must not be running",
    )
    parser.add_argument(
        "--control",
        default=f"127.0.0.1:{CONTROL_PORT}",
        metavar="HOST:PORT",
        help="where the operator will reach the server (default 127.0.0.1:8000: on the server itself)",
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="the certificates (PEM) of an authority of yours, which then signs in the place of one that is made here: "
        "requests for it are written to FOLDER/requests, and no key leaves",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a certificate that your authority issued; its key tells whose it is",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Provision, register what is new if the server is up, and say what to do next."""
    sites, removed = _names(options.sites), _names(options.remove)
    layout = Layout(options.folder.absolute())
    if removed:
        return _remove(layout, removed)
    now = authority.present()
    if options.new_authority:
        return _begin_anew(layout, now)
    made = provision(
        layout,
        server=options.server,
        also=tuple(options.also),
        control=options.control,
        sites=sites,
        now=now,
        renew=options.renew,
        outside=options.ca,
        certificates=options.certificate,
    )
    for line in made:
        print(line)
    _say_validity(layout, now)
    from cli.deployment.registration import register_sites

    server = read_start_file(layout.server_file, ServerFile)
    keys = {path.stem: path for path in sorted((layout.server / server.keys).glob("*.pub"))}
    control = parse_address(server.control, CONTROL_PORT).to_call
    registered = register_sites(control, layout.server / server.ca, read_secret(layout.operator_secret), keys)
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
        if unregister_site(control, layout.server / server.ca, read_secret(layout.operator_secret), key) is None:
            raise SettingsError(f"no server answers at {control}: start it with `coterie server`, then remove {site}")
        key.unlink()
        layout.certificate(site).unlink(missing_ok=True)
        print(f"{site}: shut out; to take it in again, remove {layout.kit(site)} and provision it anew, with a new key")
    return 0


def _begin_anew(layout: Layout, now: datetime) -> int:
    """Put a new authority in the place of one whose key, or whose server's key, somebody else may have."""
    server = read_start_file(layout.server_file, ServerFile)
    if layout.requests.is_dir():
        raise SettingsError(
            f"{layout.authority} is of an authority of yours: only it can begin anew. After a theft of {server.key} "
            f"remove that file, and call `coterie provision {layout.root} --renew`: the request is for a new key"
        )
    control = parse_address(server.control, CONTROL_PORT).to_call
    if not greet(control, layout.server / server.ca):
        raise SettingsError(f"the server is running at {control}: stop it, then do this, then start it again")
    for line in reissue(layout, server, now):
        print(line)
    _say_validity(layout, now)
    print(f"Start the server again: coterie server {layout.server_file}. A site comes back when it has its new ca.crt.")
    return 0


def _say_validity(layout: Layout, now: datetime) -> None:
    settings = read_start_file(layout.server_file, ServerFile)
    for what, path in (("authority", layout.authority), ("server", layout.server / settings.certificate)):
        if not path.exists():
            print(f"certificate of the {what}: not there yet; the server starts once it is")
            continue
        certificate: x509.Certificate = authority.read_certificate(path)
        until = certificate.not_valid_after_utc
        print(f"certificate of the {what} valid until {until:%Y-%m-%d} ({authority.days_left(certificate, now)} days)")
