"""Clocks that are off: what both sides of a federation agree on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from common.readable import duration

# Seconds by which a site's clock may differ from the coordinator's. What a site signs is older or younger than that
# only by mistake or as a copy, and TLS keeps copies from being made.
TOLERANCE = 900.0

TIME_HEADER = "coterie-time"  # with every answer to a site: the coordinator's clock, in seconds since the epoch

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
