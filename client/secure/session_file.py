"""What a site must not forget between two messages of a secure sum: on its disk, for its owner alone.

Secrets are drawn anew for every sum, and are gone from the disk when it is open. So nothing that was given away is used
again, whoever asks, and a site that was started again in the middle goes on or says no.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from client.identity import Identity
from client.memory import folder_of
from client.secure.participant import Distrust, Session
from common.disk import sync
from common.foreign import parse_json
from common.wire import Task

_NAME = "secure-sum"

_log = logging.getLogger("coterie")


class SessionFile:
    """The one secure sum that a site is a part of, in one run, and which sums of the run it has opened.

    Parameters
    ----------
    folder
        Of this site and run alone.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_NAME}.json"

    @contextmanager
    def held(self) -> Iterator[HeldSession]:
        """Keep other tasks of the site from it: of two that come at once, the second finds what the first left."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield HeldSession(self._path)


class HeldSession:
    """A session file that no other task of the site touches now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {"session": None, "opened": {}}
        try:
            found = parse_json(path.read_bytes())
            self._content = {"session": found["session"], "opened": dict(found["opened"])}
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable(error) from None

    def recall(self, context: bytes) -> Session:
        """Return the session of a sum, or raise if the site has begun no such sum, or another one since."""
        found = self._content["session"]
        if not isinstance(found, dict) or found.get("context") != context.hex():
            raise Distrust("this site has begun no such sum, or another one since, or it was told otherwise then")
        try:
            return _read(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(error) from None

    def keep(self, session: Session | None) -> None:
        """Bring a session to disk, in the place of the one before; None: there is none any more."""
        self._content["session"] = None if session is None else _written(session)
        self._write()

    def note_opened(self, round_number: int, sites: Sequence[str]) -> None:
        """Note whose updates are in the sum of a round that is about to be opened.

        Raises `Distrust` if the round was opened before with others: an update is the same when a round is done again,
        and the difference of the two sums would be a single site's.
        """
        digest = hashlib.sha256(json.dumps(sorted(sites)).encode()).hexdigest()
        if self._content["opened"].setdefault(str(round_number), digest) != digest:
            raise Distrust(f"round {round_number} was opened before, with the updates of other sites")

    def _unreadable(self, error: Exception) -> Distrust:
        # Which sums it has opened is not known any more: until somebody has looked, it opens none.
        _log.error("%s cannot be read (%s): look into it, then move it away", self._path, error)
        return Distrust("what this site keeps of secure sums cannot be read; the site's own log says more")

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            json.dump(self._content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._path)
        sync(self._path.parent)


def session_file(identity: Identity, task: Task) -> SessionFile:
    """Where a site keeps what it must not forget of the secure sums of a run."""
    return SessionFile(folder_of(identity, task, _NAME))


def _written(session: Session) -> dict[str, Any]:
    return {
        "context": session.context.hex(),
        "member": session.member,
        "encryption": session.encryption.hex(),
        "masking": session.masking.hex(),
        "seed": session.seed.hex(),
        "stage": session.stage,
        "adverts": {str(member): advert.hex() for member, advert in session.adverts.items()},
        "shares": {str(member): pair.hex() for member, pair in session.shares.items()},
        "summed": list(session.summed),
    }


def _read(found: dict[str, Any]) -> Session:
    return Session(
        context=bytes.fromhex(found["context"]),
        member=found["member"],
        encryption=bytes.fromhex(found["encryption"]),
        masking=bytes.fromhex(found["masking"]),
        seed=bytes.fromhex(found["seed"]),
        stage=found["stage"],
        adverts={int(member): bytes.fromhex(advert) for member, advert in found["adverts"].items()},
        shares={int(member): bytes.fromhex(pair) for member, pair in found["shares"].items()},
        summed=tuple(found["summed"]),
    )
