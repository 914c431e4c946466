"""`coterie site`: a site's SuperNode, and beside it the warm executor that does its work."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.arguments import Subparsers
from cli.deployment import authority
from cli.deployment.address import FLEET_PORT, HEALTH_PORT, Address, greet, parse_address, require_free
from cli.deployment.site_start import (
    as_node_config,
    check_credentials,
    require_data,
    require_ledger,
    runtime_api,
    supernode_command,
)
from cli.deployment.start_file import SiteFile, located, read_start_file
from cli.deployment.supervisor import Service, flower_environment, is_information, new_secret, plain, say, supervise
from client.flower.log_lines import is_admission, is_known_to_us, is_last_word, is_refusal
from client.foreign_code import ANY
from common.clock import is_shut_out
from common.config import FlatValue, SettingsError, parse_override

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0  # seconds between two calls to a server that does not answer
_REFUSAL_PATIENCE = 90.0  # seconds; longer than Flower counts a killed SuperNode as online


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "site",
        usage="coterie site FILE [FILE …] [--set KEY=VALUE] [--cold] [--insecure]\n"
        "       coterie site check FILE [CONFIG] [--call] [--set KEY=VALUE]\n"
        "       coterie site ledger FILE\n"
        "       coterie site approve FILE [RUN]",
        help="take part in a federation as a site, or check a site's data without any network",
        description="Starts Flower's SuperNode and a warm executor for its tasks, starts them again when they die, and "
        "keeps calling a server that does not answer. `coterie site check` only looks at the data, without any "
        "network: what is there, what is broken, what would be sent, and how long an epoch takes; CONFIG is the run's, "
        "for its class list, encoder and model. `coterie site ledger` prints what the site was asked and what left it; "
        "`coterie site approve` lists the runs that wait for a yes, or says yes to one.",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="FILE",
        help="site.toml of a site's kit, made by `coterie provision`; several sites on one machine share an executor",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting of the file, e.g. --set data=/data",
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="Flower's own way: a new process for every message, which runs the code that came with the run; needs "
        'foreign_code = ["any"] in site.toml',
    )
    parser.add_argument(
        "--call", action="store_true", help="check: also call the server: does it answer, does it know this site's key?"
    )
    parser.add_argument("--verbose", action="store_true", help="also show what Flower tells of every message")
    parser.add_argument("--insecure", action="store_true", help="no TLS and no site key: for trials on one machine")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run one or several sites until they are told to end, or check the data of one."""
    changes = dict(parse_override(text) for text in options.set)
    if options.call and options.words[0] != "check":
        raise SettingsError("--call goes with `coterie site check`")
    if options.words[0] == "check":
        return _check(options.words[1:], changes, calls=options.call)
    if options.words[0] in _ERRANDS:
        return _ERRANDS[options.words[0]](options.words[1:], changes)
    paths = [Path(word).absolute() for word in options.words]
    sites = {path: read_start_file(path, SiteFile, changes) for path in paths}
    if options.insecure:
        say("--insecure: nothing is encrypted and sites prove nothing; only for trials")
    ports = [settings.port for settings in sites.values()]
    if len(set(ports)) < len(ports):
        raise SettingsError(f"port = {max(ports, key=ports.count)} is set for two of these sites: each needs its own")
    callers: dict[Address, _Caller] = {}
    if options.cold:
        _require_foreign_code(sites)
    for path, settings in sites.items():
        ca = None if options.insecure else located(path, settings.ca)
        if ca is not None:
            check_credentials(path, settings)
        require_data(path, settings)
        require_ledger(path, settings)
        require_free(Address("127.0.0.1", settings.port), f"port in {path}")
        if settings.health:
            require_free(parse_address(settings.health, HEALTH_PORT), f"health in {path}")
        server = parse_address(settings.server, FLEET_PORT)
        callers.setdefault(server, _Caller(server, ca)).sites.append(settings.site)

    def look() -> None:
        for caller in callers.values():
            caller.look()

    first = next(iter(sites)).parent
    home = first if os.access(first, os.W_OK) else Path.home()
    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        supervise(
            services(sites, Path(scratch), cold=options.cold, insecure=options.insecure, verbose=options.verbose),
            flower_environment(home / ".flwr"),
            first,
            each_pulse=look,
        )
    return 0


def _check(words: list[str], changes: Mapping[str, FlatValue], *, calls: bool) -> int:
    if len(words) not in (1, 2):
        raise SettingsError("write `coterie site check FILE`, or `coterie site check FILE CONFIG`")
    from cli.deployment.site_check import check_site

    path = Path(words[0]).absolute()
    settings = read_start_file(path, SiteFile, changes)
    try:
        code = check_site(path, settings, Path(words[1]) if len(words) == 2 else None, calls=calls)
        return max(code, _call(path, settings)) if calls else code
    except SettingsError as error:
        # Something is in the way, as where the check itself finds it.
        print(f"PROBLEM: {error}")
        return 1


def _call(path: Path, settings: SiteFile) -> int:
    from cli.operating.doctor import call

    found = list(call(path, settings))
    for finding in found:
        print(finding)
    return int(any(finding.state == "PROBLEM" for finding in found))


def _ledger(words: list[str], changes: Mapping[str, FlatValue]) -> int:
    if len(words) != 1:
        raise SettingsError("write `coterie site ledger FILE`")
    from cli.deployment.site_ledger import show_ledger

    path = Path(words[0]).absolute()
    return show_ledger(path, read_start_file(path, SiteFile, changes))


def _approve(words: list[str], changes: Mapping[str, FlatValue]) -> int:
    if len(words) not in (1, 2):
        raise SettingsError("write `coterie site approve FILE` to see who waits, or `coterie site approve FILE RUN`")
    from cli.deployment.site_ledger import approve_run

    path = Path(words[0]).absolute()
    return approve_run(path, read_start_file(path, SiteFile, changes), words[1] if len(words) == 2 else "")


_ERRANDS = {"ledger": _ledger, "approve": _approve}


def services(
    sites: Mapping[Path, SiteFile], scratch: Path, *, cold: bool, insecure: bool, verbose: bool = False
) -> list[Service]:
    """Return a SuperNode for each site and, unless `cold`, one warm executor for all of them.

    `scratch` is a folder for what they read at their start.
    """
    # Tasks travel on this machine's loopback alone, and only to whoever knows the secret.
    secret = ["--superexec-auth-secret-file", str(new_secret(scratch))]
    chosen = []
    executor = [sys.executable, "-P", "-m", "client.executor", "--insecure", *secret]
    bell = scratch / "bell"
    executor += ["--bell", str(bell)]
    for number, (path, settings) in enumerate(sites.items()):
        node_config = scratch / f"node-{number}.toml"
        node_config.write_text(as_node_config(path, settings), encoding="utf-8")
        node = supernode_command(path, settings, node_config, None if cold else bell, insecure=insecure)
        node += ["--isolation", "subprocess"] if cold else ["--isolation", "process", *secret]
        refusal = _Refusal(_signed_name(path, settings, insecure=insecure), settings.server, verbose)
        name = f"the SuperNode of site {settings.site}"
        chosen.append(Service(name, node, hear=refusal.hear, verdict=refusal.verdict, explained=refusal.explained))
        executor += ["--supernode", runtime_api(settings)]
    if not cold:
        tasks = max(settings.tasks for settings in sites.values())
        executor += ["--tasks", str(tasks)] if tasks else []
        chosen.append(Service("the executor", executor, layer=1))
    return chosen


def _require_foreign_code(sites: Mapping[Path, SiteFile]) -> None:
    """Raise unless all sites run what the coordinator ships: Flower's own process asks nobody."""
    for path, settings in sites.items():
        if ANY not in settings.foreign_code:
            raise SettingsError(
                f"--cold runs whatever code the coordinator ships, and {path} does not allow that: leave --cold out, "
                f'or set foreign_code = ["{ANY}"] there'
            )


def _signed_name(path: Path, settings: SiteFile, *, insecure: bool) -> str:
    if insecure:
        return f"site {settings.site}"
    key = authority.read_private_key(located(path, settings.key)).public_key()
    return f"site {settings.site} with the key {authority.fingerprint(key)}"


@dataclass
class _Refusal:
    """Listens to the SuperNode for the server's refusal to let it in.

    Flower has one answer for a key it does not know and for one that it still counts as online, which it does for up to
    a minute after a SuperNode was killed. So a refused site tries again for a while before it gives up.
    """

    who: str
    server: str
    verbose: bool = False
    _since: float = 0.0
    _now: bool = False
    _clock: bool = False
    _last_words: list[str] = field(default_factory=list)

    def hear(self, line: str) -> bool:
        if is_admission(line):
            self._since = 0.0
        self._clock = is_shut_out(line) or (self._clock and not is_refusal(line))
        self._now = self._now or is_refusal(line) or is_shut_out(line)
        if not self.verbose and (self._last_words or is_last_word(line)):
            # Five lines at each of many tries; whether they are worth showing is known when all have been heard.
            self._last_words.append(line)
            return False
        # Four lines for every question bury what matters; the ledger has them all.
        told = is_information(line) or is_known_to_us(line)
        return self.verbose or is_admission(line) or not told

    def verdict(self) -> str:
        """Return why to give up, or nothing."""
        refused, self._now = self._now, False
        words, self._last_words = self._last_words, []
        if not refused:
            self._since = 0.0
            print(*map(plain, words), sep="", end="", file=sys.stderr, flush=True)
            return ""
        told = f"the server at {self.server} does not let in {self.who}"
        if self._since and time.monotonic() - self._since > _REFUSAL_PATIENCE:
            register = "ask the coordinator to register this key (`coterie provision` and `coterie server` do)"
            return f"{told}: {'set the clock of this machine' if self._clock else register}"
        if not self._since:
            self._since = time.monotonic()
            key = "it does not know the key, or still counts a killed SuperNode of this site as online"
            why = "this machine's clock is too far off" if self._clock else key
            say(f"{told}: {why}; trying again for {_REFUSAL_PATIENCE:.0f} s")
        return ""

    def explained(self) -> bool:
        """Whether it has been told why the SuperNode ended, which it does at each try."""
        return self._since > 0


class _Caller:
    """Says when the server does not answer, until it does; the SuperNode itself keeps calling all the time."""

    def __init__(self, server: Address, ca: Path | None) -> None:
        self.sites: list[str] = []
        self._server, self._ca = server, ca
        self._pause, self._next, self._reached = _FIRST_PAUSE, 0.0, False

    def look(self) -> None:
        """Call the server if it has not been reached yet and it is time to."""
        now = time.monotonic()
        if self._reached or now < self._next:
            return
        if reason := greet(self._server, self._ca):
            say(f"{self._server} does not answer ({reason}); trying again in {self._pause:.0f} s, and so on")
            self._next, self._pause = now + self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        else:
            self._reached = True
            say(f"{self._server} answers; taking part as {', '.join(self.sites)}")
