"""The doctor: is everything there that a site or the coordinator needs? Nothing is changed, nothing is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from cli.deployment import authority
from cli.deployment.address import CONTROL_PORT, FLEET_PORT, Address, greet, parse_address, require_free
from cli.deployment.operator_secret import read_secret
from cli.deployment.site_start import check_credentials, require_data, require_ledger
from cli.deployment.start_file import ServerFile, SiteFile, located
from cli.operating import findings
from cli.operating.findings import Finding
from client.flower.knock import knock
from common.clock import TOLERANCE, in_words, is_off
from common.config import SettingsError
from common.readable import megabytes

_WARN_DAYS = 30


def look_at_site(path: Path, settings: SiteFile) -> Iterator[Finding]:
    """What a site needs: credentials, data, a server that answers and knows its key, room, a clock, a GPU."""
    yield findings.versions()
    try:
        check_credentials(path, settings)
        key = authority.fingerprint(authority.read_private_key(located(path, settings.key)).public_key())
        yield Finding("ok", f"site {settings.site}, key {key}")
    except SettingsError as error:
        yield Finding("PROBLEM", str(error), "take the files from the kit again, or ask the coordinator for a new kit")
    for check in (require_data, require_ledger):
        try:
            check(path, settings)
        except SettingsError as error:
            yield Finding("PROBLEM", str(error))
        else:
            what = f"data: {located(path, settings.data)}" if check is require_data else f"ledger: {settings.ledger}"
            yield Finding("ok", what)
    yield _port(Address("127.0.0.1", settings.port), "port", "this site is running already, or")
    yield findings.proxy()
    yield from call(path, settings)
    yield findings.clock()
    places = [located(path, one) for one in (settings.models, settings.memory, settings.cache, settings.ledger) if one]
    yield from findings.disk(places)
    yield findings.memory()
    yield findings.gpu()


def call(path: Path, settings: SiteFile) -> Iterator[Finding]:
    """Whether the server answers, is the right one, and knows the site's key; and how far apart the clocks are."""
    server, ca = parse_address(settings.server, FLEET_PORT), located(path, settings.ca)
    try:
        reason = greet(server, ca)
    except SettingsError as error:
        yield Finding("PROBLEM", str(error))
        return
    if reason:
        yield Finding(
            "PROBLEM",
            f"{server} does not answer: {reason}",
            f"ask the coordinator whether `coterie server` runs; a firewall must let this machine call port "
            f"{server.port} (TCP) there: `nc -vz {server.host} {server.port}`",
        )
        return
    yield Finding("ok", f"{server} answers, with a certificate of the federation's authority")
    answer = knock(str(server), ca.read_bytes(), authority.read_private_key(located(path, settings.key)))
    if answer.knows_key:
        yield Finding("ok", f"{server} knows the key of this site")
    elif answer.knows_key is False:
        shown = authority.fingerprint(authority.read_private_key(located(path, settings.key)).public_key())
        yield Finding(
            "PROBLEM",
            f"{server} does not know the key of this site ({shown})",
            f"the coordinator puts the public key into server/keys/{settings.site}.pub (`coterie provision` does); a "
            "site that was shut out needs a new key",
        )
    else:
        yield Finding("PROBLEM", f"{server} does not say whether it knows this key: {answer.reason}")
    if answer.ahead is not None:
        if not is_off(answer.ahead):
            yield Finding("ok", "the clocks here and there agree")
        else:
            off = f"this machine's clock is {in_words(answer.ahead)} the server's"
            state = "PROBLEM" if abs(answer.ahead) >= TOLERANCE else "note"
            yield Finding(state, off, "set it, or switch time synchronisation on (`timedatectl set-ntp true`)")  # type: ignore[arg-type]


def look_at_server(path: Path, settings: ServerFile) -> Iterator[Finding]:
    """What the coordinator needs: certificates, the operator's secret, keys of sites, ports, names, room, a clock."""
    yield findings.versions()
    yield from _certificate(path, settings)
    try:
        read_secret(located(path, settings.secret))
        yield Finding("ok", "the operator's secret is there, for its owner alone")
    except SettingsError as error:
        yield Finding("PROBLEM", str(error))
    names = sorted(file.stem for file in located(path, settings.keys).glob("*.pub"))
    if names:
        yield Finding("ok", f"{len(names)} site{'s' * (len(names) > 1)} may take part: {', '.join(names)}")
    else:
        yield Finding("PROBLEM", "no site may take part yet", "coterie provision FOLDER --sites NAME,NAME")
    yield _port(parse_address(settings.listen, FLEET_PORT), "listen", "the server is running already, or")
    yield _port(parse_address(settings.control, CONTROL_PORT), "control", "the server is running already, or")
    for name in settings.names:
        yield _resolves(name)
    yield findings.clock()
    database = located(path, settings.database)
    if database.exists():
        yield Finding("ok", f"{database} has {megabytes(database.stat().st_size)}")
    yield from findings.disk([path.parent, path.parent.parent / "runs"])
    yield findings.memory()


def _certificate(path: Path, settings: ServerFile) -> Iterator[Finding]:
    now = authority.present()
    try:
        issuer = authority.read_authority(located(path, settings.ca), now)
        certificate = authority.check_server_certificate(located(path, settings.certificate), issuer, now)
        if authority.read_private_key(located(path, settings.key)).public_key() != certificate.public_key():
            raise SettingsError(f"{settings.key} is not the key of {settings.certificate}: put the right one back")
    except SettingsError as error:
        yield Finding("PROBLEM", str(error))
        return
    days = authority.days_left(certificate, now)
    end: datetime = certificate.not_valid_after_utc
    if days < _WARN_DAYS:
        hint = f"`coterie provision {path.parent.parent} --renew`; the server goes on meanwhile"
        yield Finding("PROBLEM", f"the certificate ends in {days} days, on {end:%Y-%m-%d}", hint)
    else:
        yield Finding("ok", f"the certificate is valid until {end:%Y-%m-%d}, for {', '.join(settings.names)}")


def _port(address: Address, setting: str, perhaps: str) -> Finding:
    try:
        require_free(address, setting)
    except SettingsError as error:
        return Finding("note", str(error), f"{perhaps} `ss -ltnp 'sport = :{address.port}'` names the program")
    return Finding("ok", f"{address} ({setting}) is free")


def _resolves(name: str) -> Finding:
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except OSError as error:
        hint = "correct `names` in server.toml, or the DNS"
        return Finding("note", f"{name} is not known here: {error.strerror or error}", hint)
    return Finding("ok", f"{name} is {', '.join(found)}")
