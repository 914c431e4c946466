"""Runs on one server one after another, where they ask for it; and a run that is told to end does so in good order."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from common.lock import is_held
from common.signals import set_by_handlers

_LOOK = 1.0  # seconds between two looks whether it is a run's turn
_GRACE = 60.0  # seconds to end in good order, after which being told again ends the process


def turns_folder() -> Path:
    """Where the runs of one server wait in line: in the home of its Flower."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "turns"


@contextmanager
def turn(folder: Path, *, waits: bool, tell: Callable[[int], None] = lambda before: None) -> Iterator[None]:
    """Stand in line with the other runs of this server, from now on until the end.

    Parameters
    ----------
    folder
        Where each run has a file that it locks; the kernel lets go of it however the run ends.
    waits
        Whether to wait until every run that came before has ended. Others do not wait, and are waited for all the same.
    tell
        Is told, once, how many there are to wait for.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = folder / f"{time.time_ns():020d}-{os.getpid()}"
    with place.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            told = False
            while waits and (before := _before(folder, place)):
                if not told:
                    tell(before)
                    told = True
                time.sleep(_LOOK)
            yield
        finally:
            place.unlink(missing_ok=True)


def _before(folder: Path, place: Path) -> int:
    """How many that came before are still there; what a killed run left behind is removed."""
    earlier = sorted(path for path in folder.iterdir() if path.name < place.name)
    alive = [path for path in earlier if is_held(path)]
    for path in set(earlier) - set(alive):
        path.unlink(missing_ok=True)
    return len(alive)


@contextmanager
def told_to_end(stop: threading.Event) -> Iterator[None]:
    """Let the signals by which a ServerApp is told that its run or its server was stopped set `stop`.

    Flower's own handlers report to the SuperLink from within the signal: where one comes in the middle of a request,
    the process waits for itself and is ended by force, before anything is written.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    told: list[float] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(time.monotonic())
        tell()
        earlier = before[signal.Signals(number)]
        if told[-1] - told[0] > _GRACE and callable(earlier):
            earlier(number, frame)

    with set_by_handlers(stop) as tell:
        for number in before:
            signal.signal(number, end)
        try:
            yield
        finally:
            for number, earlier in before.items():
                with suppress(ValueError, TypeError):
                    signal.signal(number, earlier)
