"""A bell between the SuperNodes of a machine and its executor: who has work rings it, in the place of being asked.

It is a named pipe, in a folder that nobody else may enter. What is written to it is an address alone: who rings gets
looked at, and no more. A ring that gets lost, because nobody listens or the pipe is full, only makes the work wait for
the executor's next look.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path

# What the kernel sends to the process that listens. Unlike the usual one it ends no process that does not expect it.
RUNG = signal.SIGURG
_MOST = 65_536


def ring(path: Path, address: str) -> None:
    """Say that the SuperNode at this address has work."""
    with contextlib.suppress(OSError):
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, f"{address}\n".encode())
        finally:
            os.close(pipe)


class Bell:
    """The executor's side. The process has one thread, which has blocked `RUNG` and waits for it."""

    def __init__(self, path: Path) -> None:
        if not path.is_fifo():
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # A pipe that nobody has open for writing is at its end. By itself: the kernel tells who writes of every look.
        self._open = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._pipe, fcntl.F_SETSIG, RUNG)
        fcntl.fcntl(self._pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._pipe, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)

    def rung(self) -> set[str]:
        """Return who has rung since this was last asked."""
        told = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._pipe, _MOST):
                told += part
        return set(told.decode(errors="replace").split())
