"""Lines that Flower's SuperLink and its `flwr` program write, and what they mean. Imports nothing of Flower."""

from __future__ import annotations

import re
from dataclasses import dataclass

STARTED = re.compile(r"Successfully started run (\d+)")
ACTIVATION = re.compile(r"ActivateNode.*public key: b'(?P<key>-----BEGIN PUBLIC KEY-----.*-----END PUBLIC KEY-----)")
ONLY_ASKED = "Heartbeat interval"
UNKNOWN_KEY = "No SuperNode found"
POLL, ANSWERED = '"POST /v1/', " 200"


@dataclass(frozen=True)
class TurnedAway:
    """A site that the SuperLink did not let in: its public key (PEM), and whether that key is registered."""

    pem: str
    known: bool


def started_run(line: str) -> str:
    """Return the number of the run that `flwr run` says it started; empty if the line says no such thing."""
    found = STARTED.search(line)
    return found[1] if found else ""


def turned_away(line: str) -> TurnedAway | None:
    """Return whom the SuperLink says it did not let in, if the line says so."""
    # A site that only asks whether it would be let in (`coterie site check --call`) breaks a rule on purpose.
    found = None if ONLY_ASKED in line else ACTIVATION.search(line)
    return TurnedAway(found["key"].replace("\\n", "\n"), known=UNKNOWN_KEY not in line) if found else None


def is_answered_poll(line: str) -> bool:
    """Whether the line only says that a program asked something, as each does all the time, and got its answer."""
    return POLL in line and ANSWERED in line


def only_asked(line: str) -> bool:
    """Whether a site only asked whether it would be let in, and would be."""
    return ONLY_ASKED in line and ACTIVATION.search(line) is not None
