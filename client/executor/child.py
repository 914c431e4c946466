"""A task in a forked process: how it starts, waits for its turn, and ends."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from client.executor.preload import missing
from client.flower.runtime import Task

READY = signal.SIGUSR1  # to the executor, from a child that has its message

_INPUT = 10.0  # seconds after which a task that still waits for its message is not counted; another may be claimed
_PR_SET_PDEATHSIG = 1
_CRASHED = 70  # exit code of a child that Flower's code did not bring to an end
_LIBC = ctypes.CDLL(None, use_errno=True)

_log = logging.getLogger("coterie.executor")


@dataclass(frozen=True)
class Turn:
    """A child's side of two pipes to the executor."""

    header: int
    go: int

    def wait(self, header: bytes) -> None:
        """Tell which message is to be answered (without content, short enough for a pipe); return with a slot."""
        os.write(self.header, header)
        os.kill(os.getppid(), READY)
        go = select.poll()
        go.register(self.go, select.POLLIN)
        # Not one long wait: Flower cancels a task by a signal, whose handler this thread runs between two waits.
        while not go.poll(1000):
            pass
        os.read(self.go, 1)


@dataclass
class Child:
    """A forked task, and the executor's side of its `Turn`; one that `has_slot` computes, or reports a crash."""

    task: Task
    header: int
    go: int
    ending: int
    has_slot: bool = False
    killed_because: str = ""
    started: float = field(default_factory=time.monotonic)

    def has_message(self) -> bool:
        """Whether it has fetched its message."""
        # Not select, which knows no file beyond the 1024th.
        header = select.poll()
        header.register(self.header, select.POLLIN)
        # The pipe of a child that died without one is hung up, which is an event, too.
        return any(event & select.POLLIN for _, event in header.poll(0))

    def lacks_message(self) -> bool:
        """Whether it has been waiting for its message for a while."""
        return not self.has_slot and time.monotonic() - self.started > _INPUT and not self.has_message()

    def give_slot(self) -> None:
        """Let it compute."""
        self.has_slot = True
        with contextlib.suppress(BrokenPipeError):  # it has died, and will be reaped
            os.write(self.go, b"!")

    def last_words(self) -> bytes:
        """Return the header of the message it fetched, if it fetched one, and close its pipes."""
        try:
            return os.read(self.header, 65536)
        except BlockingIOError:  # nothing was written, and a process that the task started still holds the other end
            return b""
        finally:
            self.close()

    def missed(self) -> list[str]:
        """What it had to import by itself, once it has ended in good order."""
        try:
            return os.read(self.ending, 65536).decode(errors="replace").split()
        except BlockingIOError:  # as with last words
            return []

    def close(self) -> None:
        """Close its pipes."""
        os.close(self.header)
        os.close(self.go)
        os.close(self.ending)


def start(task: Task, work: Callable[[Turn], None]) -> tuple[int, Child]:
    """Fork a child that does `work`; return its process id too."""
    header, header_writing = os.pipe()
    go_reading, go = os.pipe()
    ending, ending_writing = os.pipe()
    os.set_blocking(header, False)
    os.set_blocking(ending, False)
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_task(parent, partial(work, Turn(header_writing, go_reading)), ending_writing)
    os.close(header_writing)
    os.close(go_reading)
    os.close(ending_writing)
    return pid, Child(task, header, go, ending)


def cause_of(code: int) -> str:
    """Say how a child ended; empty if Flower's code brought it to an end (0, or 1 after an error it has reported)."""
    if code in {0, 1}:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _become_task(parent: int, work: Callable[[], None], ending: int) -> NoReturn:
    """Do the work, say what had to be imported for it, and end without the parent's clean-up."""
    code, before = _CRASHED, missing()
    try:
        _die_with(parent)
        # Out of reach of Ctrl-C in a terminal, and SIGTERM stays blocked: see the package's own words.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGCHLD))
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        _log.exception("a task ended in a way that Flower does not know")
    finally:
        with contextlib.suppress(Exception):
            os.write(ending, " ".join(before - missing()).encode())
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent is gone, however the parent ended."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(_CRASHED)
