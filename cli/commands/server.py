"""`coterie server`: the coordinator's SuperLink and, apart from it, what runs the ServerApp."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.arguments import Subparsers
from cli.deployment import authority
from cli.deployment.address import CONTROL_PORT, FLEET_PORT, HEALTH_PORT, Address, parse_address, require_free
from cli.deployment.cut_off import mark_cut_off
from cli.deployment.expiry import ExpiryWatch
from cli.deployment.operator_secret import SECRET_OPTION, read_secret
from cli.deployment.proxy import for_programs
from cli.deployment.start_file import ServerFile, located, read_start_file
from cli.deployment.supervisor import Service, flower_environment, new_secret, program, say, supervise
from common.clock import TOLERANCE, foreign_clock, in_words
from common.config import SettingsError
from common.readable import duration
from server.flower.log_lines import is_answered_poll, only_asked, turned_away

_KEYS_EVERY = 2.0  # seconds between two looks at the folder of public keys
_SILENCE = 60.0  # seconds until a SuperLink that does not answer is spoken of


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "server",
        help="run the coordinator of a federation of separate machines",
        description="Starts Flower's SuperLink and, apart from it, the program that runs the ServerApp; starts them "
        "again when they die; registers the keys of new sites. Ctrl-C or SIGTERM ends both.",
    )
    parser.add_argument("file", type=Path, help="server.toml, as made by `coterie provision`")
    parser.add_argument("--insecure", action="store_true", help="no TLS and no site keys: for trials on one machine")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the server until it is told to end."""
    path = options.file.absolute()
    settings = read_start_file(path, ServerFile)
    control = parse_address(settings.control, CONTROL_PORT)
    if options.insecure:
        say("--insecure: nothing is encrypted and anybody may take part; only for trials")
    else:
        check_credentials(path, settings)
        read_secret(located(path, settings.secret))
    if options.insecure and not control.is_local:
        say(f"control = {settings.control!r} is open to other machines, and it asks for no secret: fence it in")
    require_free(control, "control")
    require_free(parse_address(settings.listen, FLEET_PORT), "listen")
    if settings.health:
        require_free(parse_address(settings.health, HEALTH_PORT), "health")
    os.environ.update(for_programs(os.environ, [control.to_call.host]))
    _name_cut_off(path)
    expiry = None if options.insecure else _expiry_watch(path, settings)
    gate = _Gate(path, settings, control.to_call, insecure=options.insecure)

    def look() -> None:
        for text in expiry.look(authority.present()) if expiry else ():
            say(text)
        gate.look()

    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        supervise(
            services(path, settings, new_secret(Path(scratch)), insecure=options.insecure),
            flower_environment(path.parent / "flwr"),
            path.parent,
            each_pulse=look,
        )
    # A run that was asked to end and did not get to say so.
    _name_cut_off(path)
    return 0


def _name_cut_off(path: Path) -> None:
    for run_directory in mark_cut_off(path.parent.parent / "runs"):
        resume = f"`coterie run CONFIG.toml --on {path.parent.parent} --resume --out {run_directory}`"
        say(f"{run_directory} was cut off when the server stopped; {resume} goes on with it")


def check_credentials(path: Path, settings: ServerFile) -> None:
    """Raise if sites would refuse this server."""
    now = authority.present()
    issuer = authority.read_authority(located(path, settings.ca), now)
    certificate_path = located(path, settings.certificate)
    certificate = authority.check_server_certificate(certificate_path, issuer, now)
    if authority.read_private_key(located(path, settings.key)).public_key() != certificate.public_key():
        raise SettingsError(f"{settings.key} is not the key of {certificate_path}: put the right one back")


def _expiry_watch(path: Path, settings: ServerFile) -> ExpiryWatch:
    renew = f"run `coterie provision {path.parent.parent} --renew`; the server goes on meanwhile"
    return ExpiryWatch(
        {
            located(path, settings.certificate): renew,
            located(path, settings.ca): "provision a new federation in an empty folder, with new kits for all sites",
        }
    )


def services(path: Path, settings: ServerFile, secret: Path, *, insecure: bool) -> list[Service]:
    """Return the SuperLink and the SuperExec, which survives it, and with it the run."""
    control = parse_address(settings.control, CONTROL_PORT)
    ca = str(located(path, settings.ca))
    # -P: modules that lie in the folder of the start file are not for it.
    link = [sys.executable, "-P", "-m", "cli.deployment.superlink"]
    link += [] if insecure else [SECRET_OPTION, str(located(path, settings.secret))]
    link += ["--isolation", "process", "--disable-runtime-dependency-installation"]
    link += ["--host", control.host, "--port", str(control.port), "--fleet-api-address", settings.listen]
    link += ["--database", str(located(path, settings.database))]
    link += ["--health-server-address", settings.health] if settings.health else []
    executor = [program("flower-superexec"), "--runtime-api-address", str(control.to_call)]
    if insecure:
        link.append("--insecure")
        executor.append("--insecure")
    else:
        link += ["--ssl-certfile", str(located(path, settings.certificate))]
        link += ["--ssl-keyfile", str(located(path, settings.key)), "--ssl-ca-certfile", ca, "--enable-supernode-auth"]
        executor += ["--root-certificates", ca]
    for command in (link, executor):
        command += ["--superexec-auth-secret-file", str(secret)]
    porter = _Porter(located(path, settings.keys))
    return [Service("the SuperLink", link, hear=porter.hear), Service("the SuperExec", executor, layer=1)]


@dataclass
class _Porter:
    """Listens to the SuperLink, and says in words whom it turned away."""

    keys: Path

    def hear(self, line: str) -> bool:
        """Return whether a line of its log is worth showing."""
        if caller := turned_away(line):
            say(self._explain(caller.pem, known=caller.known))
            return False
        if clock := foreign_clock(line):
            name, shown = self._owner(clock.pem)
            limit = "" if abs(clock.seconds) < TOLERANCE else f": it is not let in (at most {duration(TOLERANCE)})"
            say(f"the clock of site {name or shown} is {in_words(clock.seconds)} this machine's{limit}")
            return False
        # One line for every poll of every program would bury all others.
        return not (is_answered_poll(line) or only_asked(line))

    def _explain(self, pem: str, *, known: bool) -> str:
        owner, shown = self._owner(pem)
        if known:
            return f"site {owner or shown} called, but counts as online: it was killed a minute ago, or runs twice"
        if owner:
            return f"site {owner} was turned away: its key ({shown}) is not registered, or was unregistered"
        return f"a site was turned away: nobody here has its key ({shown}); `coterie provision` makes keys"

    def _owner(self, pem: str) -> tuple[str, str]:
        """The site that a key belongs to, empty if nobody here has it, and the key as people compare it."""
        key = authority.load_public_pem(pem)
        files = self.keys.glob("*.pub")
        return next((one.stem for one in files if authority.read_public_key(one) == key), ""), authority.fingerprint(
            key
        )


@dataclass
class _Gate:
    """Says when the SuperLink is up, and registers the sites whose keys appear."""

    path: Path
    settings: ServerFile
    control: Address
    insecure: bool
    # By content: the key of a site may be replaced by another of the same name.
    _handled: set[bytes] = field(default_factory=set)
    _up: bool = False
    _next: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _KEYS_EVERY
        folder = located(self.path, self.settings.keys)
        keys = {} if self.insecure else {file: file.read_bytes() for file in sorted(folder.glob("*.pub"))}
        missing = {file: content for file, content in keys.items() if content not in self._handled}
        if self._up and not missing:
            return
        from cli.deployment.registration import register_sites

        ca = None if self.insecure else located(self.path, self.settings.ca)
        try:
            secret = "" if self.insecure else read_secret(located(self.path, self.settings.secret))
            new = register_sites(self.control, ca, secret, {file.stem: file for file in self._sound(missing)})
        except SettingsError as error:
            # Whatever it is, the run that may be under way is worth more.
            say(str(error))
            self._next = now + _SILENCE
            return
        if new is None:
            if not self._up and now - self._began > _SILENCE:
                say(f"the SuperLink does not answer at {self.control} yet")
                self._began = now
            return
        self._handled |= set(keys.values())
        if new:
            say(f"registered: {', '.join(new)}")
        if not self._up:
            self._up = True
            say(f"the server is up; sites call {self.settings.address} ({len(keys)} known)")
            say(f"start a run: coterie run CONFIG.toml --on {self.path.parent.parent}{' --insecure' * self.insecure}")

    def _sound(self, files: Mapping[Path, bytes]) -> Iterator[Path]:
        """Yield the files that hold a key, and speak of the others once: they must not keep anybody else out."""
        for file, content in files.items():
            try:
                authority.read_public_key(file)
            except SettingsError as error:
                say(str(error))
                self._handled.add(content)
            else:
                yield file
