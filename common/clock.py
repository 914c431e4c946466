"""Clocks that are off: what both sides of a federation agree on."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.readable import duration

# Seconds by which a site's clock may differ from the coordinator's. What a site signs is older or younger than that
# only by mistake or as a copy, and TLS keeps copies from being made.
TOLERANCE = 900.0

TIME_HEADER = "coterie-time"  # with every answer to a site: the coordinator's clock, in seconds since the epoch

# Lines by which a program that was started says to the one that watches over it what it found.
_TOO_FAR = f"nobody is let in whose clock is off by {duration(TOLERANCE)} or more"
_FOREIGN = re.compile(
    r"^coterie-clock (?P<seconds>[-+]\d+\.\d) (?P<key>-----BEGIN PUBLIC KEY-----.*-----END PUBLIC KEY-----)$"
)

_WORTH_A_WORD = 5.0  # seconds
_AGAIN = 86_400.0  # seconds after which a clock that is still off is spoken of again


class ClockWatch:
    """Decides when a difference between two clocks is spoken of: when it appears, changes, lasts, and is gone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told, self._at = 0.0, -math.inf

    def is_news(self, ahead: float) -> bool:
        """Whether to speak of a clock that is `ahead` seconds ahead of the other."""
        off = is_off(ahead)
        if not is_off(ahead - self._told) and not (off and self._now() - self._at > _AGAIN):
            return False
        self._told, self._at = ahead if off else 0.0, self._now()
        return True


def is_off(seconds: float) -> bool:
    """Whether a difference is one to speak of."""
    return abs(seconds) >= _WORTH_A_WORD


def ahead(before: float, there: float, after: float) -> float:
    """How many seconds this clock is surely ahead of another, which showed `there` between `before` and `after`."""
    return max(before - there, 0.0) + min(after - there, 0.0)


def in_words(seconds: float) -> str:
    """Say how a clock differs from another: 12.0 s ahead of it, behind it, or right again."""
    if not is_off(seconds):
        return "right again, as"
    return f"{duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def own_clock_line(seconds: float) -> str:
    """Write that this machine's clock is ahead of the coordinator's."""
    remedy = ": set it, or switch time synchronisation on (`timedatectl set-ntp true`)" if is_off(seconds) else ""
    limit = f"; {_TOO_FAR}" if abs(seconds) >= TOLERANCE else ""
    return f"coterie: this machine's clock is {in_words(seconds)} the coordinator's{remedy}{limit}"


def is_shut_out(line: str) -> bool:
    """Whether a line says that this machine's clock is too far off to be let in."""
    return _TOO_FAR in line


@dataclass(frozen=True)
class ForeignClock:
    """By how many seconds the clock of the site with a public key (PEM) is ahead."""

    pem: str
    seconds: float


def foreign_clock_line(clock: ForeignClock) -> str:
    """Write that a site's clock is off."""
    return f"coterie-clock {clock.seconds:+.1f} {clock.pem.strip()}".replace("\n", "\\n")


def foreign_clock(line: str) -> ForeignClock | None:
    """Return whose clock is off, and by how much, if the line says so."""
    found = _FOREIGN.search(line.strip())
    return ForeignClock(found["key"].replace("\\n", "\n"), float(found["seconds"])) if found else None
