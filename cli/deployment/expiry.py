"""How long certificates still last, said while they are in use and not only at the start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from cli.deployment import authority
from common.config import SettingsError

WARN_DAYS = 30
_DAY = 86_400.0


class ExpiryWatch:
    """Speaks of certificates that end within `WARN_DAYS`: at once, and then once a day.

    Parameters
    ----------
    certificates
        File → what to do about it when it ends.
    """

    def __init__(self, certificates: Mapping[Path, str]) -> None:
        self._certificates = dict(certificates)
        self._next = -math.inf

    def look(self, now: datetime) -> list[str]:
        """What is to be said now."""
        if now.timestamp() < self._next:
            return []
        self._next = now.timestamp() + _DAY
        return [text for path, remedy in self._certificates.items() if (text := _ending(path, remedy, now))]


def _ending(path: Path, remedy: str, now: datetime) -> str:
    try:
        days = authority.days_left(authority.read_certificate(path), now)
    except SettingsError as error:
        return str(error)
    if days >= WARN_DAYS:
        return ""
    return f"{path} {f'ends in {days} days' if days >= 0 else 'is over, and sites refuse this server'}: {remedy}"
