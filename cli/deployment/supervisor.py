"""Keeps Flower's programs running: starts them, starts them again when they die, and ends them together."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from cli.deployment.bound import bound
from cli.deployment.proxy import for_programs
from common.config import SettingsError
from common.signals import set_by_handlers

_PULSE = 0.3  # seconds between two looks at the programs
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a program that died is started again
_SETTLED = 60.0  # seconds after which a program counts as having started well
_MOST_FALSE_STARTS = 8
_LAST_WORDS = 5.0  # seconds to read what a program wrote before it ended
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_INFORMATION = re.compile(r"(INFO|DEBUG)\s*:|\s*$")
_GRACE = 25.0  # seconds to end in good order; a service manager gives both layers together a minute
_BREATH = 0.05  # seconds between two looks at what a program left behind


def say(text: str) -> None:
    """Tell the operator, beside the programs' own logs."""
    print(f"coterie: {text}", file=sys.stderr, flush=True)


def plain(line: str) -> str:
    """A line without the colours of a terminal, as it belongs into a log."""
    return _COLOURS.sub("", line)


def is_information(line: str) -> bool:
    """Whether a program says of a line of its log that nothing is wrong."""
    return _INFORMATION.match(plain(line)) is not None


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: no telemetry, no updates, no installing, and its files in `home`."""
    return {
        "FLWR_HOME": str(home),
        **for_programs(os.environ),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # Their output goes through a pipe, and is to be seen when it is written.
        "PYTHONUNBUFFERED": "1",
        # Flower calls its other programs by their bare names.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside this Python first."""
    folder = Path(sys.executable).parent
    path = shutil.which(name, path=os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)]))
    if path is None:
        raise SettingsError(f"{name} is not installed beside {sys.executable}: install Coterie again")
    return path


def new_secret(folder: Path) -> Path:
    """Write a secret by which two programs know each other, so that other users of this machine get no tasks."""
    path = folder / "secret"
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(secrets.token_bytes(48))
    return path


class Refused(SettingsError):
    """A program ended for a reason that starting it again would not change."""


@dataclass
class Service:
    """A program that is to run all the time.

    Attributes
    ----------
    name
        For the operator.
    command
        With all arguments.
    hear
        Given each line it writes: whether to show it.
    verdict
        Asked when it ended by itself: why starting it again is of no use, or nothing.
    explained
        Asked after that: whether the operator knows already why it ended and that it is started again.
    layer
        A program of a higher layer works through those of the lower ones, and ends before them.
    """

    name: str
    command: Sequence[str]
    hear: Callable[[str], bool] = lambda line: True
    verdict: Callable[[], str] = lambda: ""
    explained: Callable[[], bool] = lambda: False
    layer: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)
    _reader: threading.Thread | None = field(default=None, repr=False)
    _started: float = 0.0
    _due: float = 0.0
    _false_starts: int = 0

    def start(self, environment: Mapping[str, str], folder: Path) -> None:
        # In a session of its own, so that Ctrl-C in a terminal reaches the supervisor alone, and so that the programs
        # it starts in turn are ended with it.
        self._process = subprocess.Popen(
            bound(self.command),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._started = time.monotonic()
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._relay, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def keep(self, environment: Mapping[str, str], folder: Path) -> None:
        """Start the program if it is not running and its time has come."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self.start(environment, folder)
            return
        code = self._process.poll()
        if code is None:
            return
        self._end_group(signal.SIGKILL)
        if self._reader is not None:
            self._reader.join(_LAST_WORDS)
        self._process = None
        if reason := self.verdict():
            raise Refused(reason)
        self._false_starts = 0 if now - self._started >= _SETTLED else self._false_starts + 1
        if self._false_starts > _MOST_FALSE_STARTS:
            raise Refused(f"{self.name} ended {self._false_starts} times soon after its start; its own words are above")
        pause = min(_FIRST_PAUSE * 2 ** max(self._false_starts - 1, 0), _LONGEST_PAUSE)
        self._due = now + pause
        if not self.explained():
            say(f"{self.name} ended by itself ({_cause(code)}); starting it again in {pause:.0f} s")

    def ask_to_end(self) -> None:
        """Ask the program and what it started to end."""
        self._end_group(signal.SIGTERM)

    def stop(self) -> None:
        """Wait for a program that was asked to end, and then end it and what it started by force."""
        if self._process is None:
            return
        until = time.monotonic() + _GRACE
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        # What it started may have more to say than itself: a run writes down that it was interrupted.
        while time.monotonic() < until and _lives(self._process.pid):
            time.sleep(_BREATH)
        self._end_group(signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        return self._process.pid if self._process is not None else None

    def _end_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _relay(self, stream: IO[str]) -> None:
        with stream, suppress(ValueError):
            for line in stream:
                try:
                    worth_showing = self.hear(line)
                except Exception:
                    # Whatever a listener makes of a line: the pipe must be emptied, or the program would stand still.
                    worth_showing = True
                if worth_showing:
                    with suppress(OSError):
                        sys.stderr.write(line if sys.stderr.isatty() else plain(line))
                        sys.stderr.flush()


def supervise(
    services: Sequence[Service],
    environment: Mapping[str, str],
    folder: Path,
    *,
    each_pulse: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
) -> None:
    """Run services until SIGTERM, SIGHUP, Ctrl-C or `stop`; they start in the given order and end by layers.

    Raises
    ------
    Refused
        If one of them cannot run. The others have been ended.
    """
    stop = stop or threading.Event()
    with _signals(stop):
        try:
            while not stop.is_set():
                for service in services:
                    service.keep(environment, folder)
                each_pulse()
                stop.wait(_PULSE)
        finally:
            for layer in sorted({service.layer for service in services}, reverse=True):
                members = [service for service in services if service.layer == layer]
                for service in members:
                    service.ask_to_end()
                for service in members:
                    service.stop()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        if not stop.is_set():
            say(f"{signal.Signals(number).name}: ending …")
        tell()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A closed terminal too, unless nohup says otherwise: the programs, in sessions of their own, would stay behind.
    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
    with set_by_handlers(stop) as tell:
        previous = {number: signal.signal(number, end) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _lives(group: int) -> bool:
    """Whether anybody of a process group is at work, who has ended without being waited for left aside."""
    processes = Path("/proc")
    if not processes.is_dir():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True
    for entry in processes.glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the name, which is in parentheses and may contain any: state, parent, group.
            state, _, its_group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _cause(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
