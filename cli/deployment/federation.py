"""The operator's connection to the server of a federation: its sites, its runs, and ending one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.deployment.address import CONTROL_PORT, Address, greet, parse_address
from cli.deployment.layout import Layout
from cli.deployment.operator_secret import read_secret
from common.config import SettingsError
from common.foreign import Unusable, read_toml
from server.flower.control import Control, KnownRun, SuperLinkAway, SuperLinkRefuses, connected


@dataclass(frozen=True)
class Connection:
    """Where the operator reaches the server, from the operator's own file: it may sit at another machine.

    `written` is the address as that file has it, under which Flower's own program keeps the secret.
    """

    name: str
    written: str
    control: Address
    ca: Path | None
    secret: str
    # Whether the server's own folder belongs to whoever asks.
    of_this_user: bool = False


def connection_to(folder: Path, *, insecure: bool = False) -> Connection:
    """Read how to reach the server of a federation, or raise saying what is missing."""
    layout = Layout(folder.absolute())
    path = layout.operator / "config.toml"
    if not path.exists():
        raise SettingsError(f"{layout.root} is not the folder of a federation: `coterie provision` makes one")
    name = "coterie-insecure" if insecure else "coterie"
    try:
        written = str(read_toml(path)["superlink"][name]["address"])
    except (OSError, Unusable, LookupError, TypeError) as error:
        raise SettingsError(f"{path} cannot be used: {error}; `coterie provision` writes it anew") from None
    return Connection(
        name,
        written,
        parse_address(written, CONTROL_PORT),
        None if insecure else layout.operator / "ca.crt",
        "" if insecure else read_secret(layout.operator_secret),
        layout.server.exists() and layout.server.stat().st_uid == os.geteuid(),
    )


@contextmanager
def speaking_to(connection: Connection) -> Iterator[Control]:
    """Speak to the server, or raise saying why it does not answer."""
    if reason := greet(connection.control, connection.ca):
        raise SettingsError(_no_answer(connection, reason))
    try:
        with connected(str(connection.control), connection.ca, connection.secret) as superlink:
            yield superlink
    except SuperLinkAway as error:
        raise SettingsError(_no_answer(connection, str(error))) from None
    except SuperLinkRefuses as error:
        raise SettingsError(f"the server at {connection.control} refuses: {error}") from None


def _no_answer(connection: Connection, reason: str) -> str:
    return f"no server answers at {connection.control} ({reason}): start it with `coterie server`"


def under_way(superlink: Control) -> list[KnownRun]:
    """The runs that have not ended, the first of them first."""
    return [run for run in reversed(superlink.runs()) if not run.has_ended]


def named(runs: list[KnownRun], wanted: str) -> KnownRun:
    """The run that a number, the end of one, or a run directory stands for; "last": the latest."""
    if not runs:
        raise SettingsError("this server has no run yet: start one with `coterie run`")
    if wanted == "last":
        return runs[0]
    if wanted.isdecimal():
        found = [run for run in runs if str(run.number).endswith(wanted)]
    else:
        place = Path(wanted).absolute()
        found = [run for run in runs if Path(run.text("out")) == place or Path(run.text("out")).name == wanted]
    exact = [run for run in found if str(run.number) == wanted]
    # The same directory twice is one run that went on: its latest part is meant.
    if not found or (len({run.text("out") for run in found}) > 1 and not exact):
        what = "fits several runs" if found else "is no run of this server"
        raise SettingsError(
            f"{wanted} {what}: `coterie runs --on …` lists numbers and directories; `last` is the latest"
        )
    return (exact or found)[0]
