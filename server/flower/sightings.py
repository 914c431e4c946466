"""What the SuperLink sees of its sites, for whoever asks how they are: version, and how far the clock is off."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from common.foreign import Unusable, read_json

SEEN = "seen.json"  # in the server's folder

_WRITE_EVERY, _LOOK_EVERY = 2.0, 60.0  # seconds
_SAME_CLOCK = 2.0  # seconds by which a clock may change before that is news
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,30}")


@dataclass(frozen=True)
class Sighting:
    """What a site's signed question showed: its version, by how many seconds its clock is ahead, and when that was."""

    version: str
    ahead: FiniteFloat
    at: FiniteFloat


_FORM = TypeAdapter(dict[str, Sighting])


class Sightings:
    """Keeps the last sighting of each site in a file; what cannot be written is of no consequence to anybody's run."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._found = read_sightings(path)
        self._written = -math.inf
        self._lock = threading.Lock()

    def is_due(self, key: bytes, version: str, ahead: float) -> bool:
        """Whether a question shows something that is not known, or was looked at long ago."""
        last = self._found.get(name_of(key))
        return (
            last is None
            or last.version != _plain(version)
            or abs(last.ahead - ahead) > _SAME_CLOCK
            or not 0 <= self._now() - last.at < _LOOK_EVERY
        )

    def note(self, key: bytes, version: str, ahead: float) -> None:
        """Keep what the site with a key has signed."""
        with self._lock:
            self._found[name_of(key)] = Sighting(_plain(version), round(ahead, 1), round(self._now(), 1))
            # What is left out now is written with one of the next questions: every site asks every few seconds.
            if self._now() - self._written >= _WRITE_EVERY:
                self._written = self._now()
                self._write()

    def _write(self) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        with suppress(OSError):
            fresh.write_text(json.dumps({name: asdict(one) for name, one in self._found.items()}), encoding="utf-8")
            os.replace(fresh, self._path)


def read_sightings(path: Path) -> dict[str, Sighting]:
    """What is known of sites, by `name_of` their keys; a file that is damaged is as good as none."""
    try:
        return {name: _plain_of(one) for name, one in _FORM.validate_python(read_json(path)).items()}
    except (OSError, Unusable, ValidationError):
        return {}


def name_of(key: bytes) -> str:
    """Return what a public key is called here."""
    return hashlib.sha256(key).hexdigest()


def _plain(version: str) -> str:
    return version if _VERSION.fullmatch(version) else "?"


def _plain_of(sighting: Sighting) -> Sighting:
    return replace(sighting, version=_plain(sighting.version))
