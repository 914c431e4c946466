"""What a site remembers of a run, from one of its rounds to the next.

A reply may be lost after the site has moved on, and a server may go back to an older checkpoint. So the site keeps
versions by round, and the server says with every task in which round an update of the site last entered a mean: that
version is the one that counts, and later ones never were.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from client.identity import Identity, cache_folder
from common import wire
from common.disk import gone_if_it_fails, sync
from common.foreign import Unusable, read_tensors
from common.site_name import is_site_name
from common.state import State
from common.tensors import contiguous, write_tensors

_log = logging.getLogger("coterie")

_FILE = re.compile(r"round-(\d{10})\.safetensors")
_LAST = 2
_LONGEST_NAME = 255  # bytes that a file system takes
_FORGOTTEN = 90 * 24 * 3600.0  # seconds after which what nobody asked for is removed


class Memory:
    """The versions of one site, one run and one rule, in a folder of their own.

    Parameters
    ----------
    folder
        Of this site and run alone.
    run, rule
        What the versions belong to; a file of another run or rule is not read.
    """

    def __init__(self, folder: Path, run: str, rule: str) -> None:
        self._folder = folder
        self._about = {"run": run, "rule": rule}

    @property
    def folder(self) -> Path:
        """Where the versions are."""
        return self._folder

    def recall(self, accepted: int) -> State | None:
        """Return the version of the round `accepted`; None: it is not there, or cannot be read."""
        path = self._path(accepted)
        try:
            arrays, about = read_tensors(path)
            if about != self._about_round(accepted):
                raise Unusable("it is of another run, rule or round")
            return arrays
        except (OSError, Unusable) as error:
            if path.exists():
                _log.warning("what this site remembers of round %d cannot be read: %s", accepted, error)
            return None

    def remember(self, round_number: int, arrays: State, *, accepted: int = 0, checkpoints: Sequence[int] = ()) -> None:
        """Write the version of a round, made from that of `accepted`, whole or not at all.

        Kept are the last two, and for each of `checkpoints` the newest version that is not after it.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for late in [one for one in self._rounds() if one > accepted and one != round_number]:
            # Its update never entered a mean, or the server went back: for the federation it did not happen.
            self._path(late).unlink(missing_ok=True)
        for torn in self._folder.glob("*.part"):
            torn.unlink(missing_ok=True)
        path = self._path(round_number)
        part = path.with_suffix(".part")
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY, 0o600))
        written = {name: contiguous(array) for name, array in arrays.items()}
        with gone_if_it_fails(part):
            write_tensors(part, written, self._about_round(round_number))
            os.chmod(part, 0o600)
            sync(part)
            os.replace(part, path)
        # The name, too: the server may count this round as soon as it hears of it.
        sync(self._folder)
        rounds = self._rounds()
        kept = set(rounds[-_LAST:])
        for checkpoint in checkpoints:
            kept |= set([one for one in rounds if one <= checkpoint][-1:])
        for old in set(rounds) - kept:
            self._path(old).unlink(missing_ok=True)

    def _about_round(self, round_number: int) -> dict[str, str]:
        return {**self._about, "round": str(round_number)}

    def _path(self, round_number: int) -> Path:
        return self._folder / f"round-{round_number:010d}.safetensors"

    def _rounds(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(match[1]) for path in self._folder.iterdir() if (match := _FILE.fullmatch(path.name)))


def open_memory(identity: Identity, task: wire.Task, kind: str = "") -> Memory:
    """Return what a site remembers of the run that a task belongs to: for its rule, or of a `kind` of its own.

    A site of a simulation keeps it in the run directory; a site that somebody set up in its own folder, whatever the
    server says.
    """
    return Memory(folder_of(identity, task, kind), task.run, kind or task.rule)


def folder_of(identity: Identity, task: wire.Task, kind: str = "") -> Path:
    """Where a site keeps what it must not forget of the run that a task belongs to."""
    name = _folder_name(identity.name)
    if identity.in_engine and task.folder:
        return Path(task.folder) / name / kind
    return _base(identity, task.settings.cache) / f"run-{task.run}" / name / kind


def _base(identity: Identity, setting: str = "") -> Path:
    return identity.memory or cache_folder(identity, setting) / "memory"


def forget_old_runs(identity: Identity) -> None:
    """Remove what a site of its own remembers of runs that nobody has asked it about for a long time."""
    base = _base(identity)
    if identity.is_simulated or not base.is_dir():
        return
    for run in base.iterdir():
        # Another site of this machine may be at work there, or forget at the same time.
        with suppress(OSError):
            if time.time() - run.stat().st_mtime > _FORGOTTEN and _newest(run) < time.time() - _FORGOTTEN:
                shutil.rmtree(run, ignore_errors=True)


def _newest(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.rglob("*")), default=0.0)


def _folder_name(site: str) -> str:
    """The site's name; a digest in the place of one that is no file name."""
    encoded = site.encode(errors="surrogatepass")
    if is_site_name(site) and len(encoded) <= _LONGEST_NAME:
        return site
    return f"%{hashlib.sha256(encoded).hexdigest()}"
