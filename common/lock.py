"""One process at a time. Locks are advisory, and the kernel releases them however their holder ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from common.config import SettingsError
from common.foreign import parse_json


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on `path` (made if missing); wait for whoever has it."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def alone(path: Path, what: str) -> Iterator[int]:
    """Hold a lock on `path` and say there who does, or raise naming who has it; `what` is what there can be one of.

    Yields the lock's file descriptor: a child that keeps it open holds the lock, too.
    """
    # Not "w": what another process says of itself there must not be lost.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{what} is in use {_by_whom(file)}") from None
        _write(file, {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")})
        try:
            yield file.fileno()
        finally:
            _write(file, None)


def is_held(path: Path) -> bool:
    """Whether some process has the lock on `path` now."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _write(file: IO[str], holder: dict[str, object] | None) -> None:
    file.seek(0)
    file.truncate()
    if holder is not None:
        json.dump(holder, file)
    file.flush()


def _by_whom(file: IO[str]) -> str:
    """Who says in a lock's file that it holds the lock, and what to do about it."""
    try:
        holder = parse_json(file.read(10_000))
        pid, host, since = int(holder["pid"]), str(holder["host"])[:255], str(holder["since"])[:40]
    except (OSError, ValueError, KeyError, TypeError):
        return "by another process: wait until it has ended"
    if host != socket.gethostname():
        return f"by process {pid} on {host}, since {since}: wait for it, or end it there"
    if not Path(f"/proc/{pid}").exists():
        return (
            f"by what process {pid} left behind, since {since}: wait for it, or end it (`fuser {file.name}` names it)"
        )
    return f"by process {pid} on this machine, since {since}: wait for it, or end it (`kill {pid}`)"
