"""A real federation as processes on loopback: `coterie server`, `coterie site` and `coterie run`, with TLS and keys.

Sites hold handwritten digits in folders of their own.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from cli.deployment.layout import Layout
from cli.main import main
from server.history.event_log import Logged, read_events
from server.history.events import Event

ROOT = Path(__file__).parents[2]

# Seconds for anything to happen at all; on an idle machine it takes a few, on one with ten times its load a minute.
PATIENCE = 240

Found = TypeVar("Found")


def until(condition: Callable[[], Found], seconds: float, what: str) -> Found:
    """Wait for something that is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def descendants(pid: int) -> dict[int, str]:
    """Process id → command of everything below a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return {child: command_of(child) for child in family - {pid}}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


@dataclass
class Started:
    """A `coterie` command in the background, with its output in a file."""

    log: Path
    process: subprocess.Popen[bytes]
    family: dict[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def below(self, name: str) -> list[int]:
        """The processes it started, directly or not, whose command has `name` in it."""
        return [pid for pid, command in descendants(self.process.pid).items() if name in command]

    def ask_to_end(self) -> None:
        self.family = descendants(self.process.pid)
        self.process.terminate()

    def end(self) -> None:
        """See it end, or end it by force, and all it started too."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, command in self.family.items():
            if alive(pid) and command_of(pid) == command:
                os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it and all it started at once, as if the machine had lost its power."""
        self.family = descendants(self.process.pid)
        for pid in (self.process.pid, *self.family):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Federation:
    """A provisioned federation in a folder, and the commands that were started in it."""

    root: Path
    project: Path = ROOT
    variables: Mapping[str, str] = field(default_factory=dict)
    started: dict[str, Started] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(self.root / "fed")

    def provision(self, sites: Sequence[str]) -> None:
        """Make certificates, and keys for `sites`, on ports that nobody uses."""
        fleet, control, health = free_ports(3)
        arguments = ["provision", str(self.layout.root), "--server", f"localhost:{fleet}"]
        with redirect_stdout(io.StringIO()):
            assert main([*arguments, "--control", f"127.0.0.1:{control}", "--sites", ",".join(sites)]) == 0
        settings = self.layout.server_file
        settings.write_text(settings.read_text().replace("127.0.0.1:9095", f"127.0.0.1:{health}"))

    def start(self, name: str, *arguments: str) -> Started:
        """Start a `coterie` command; one thread, because sites, server and tests share the cores."""
        environment = {"PYTHONPATH": str(self.project), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with (self.root / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", *arguments],
                env={**os.environ, **environment, **self.variables},
                cwd=self.root,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started[name] = Started(self.root / f"{name}.log", process)
        return self.started[name]

    def start_server(self) -> Started:
        """Start the server and wait until it lets its sites in."""
        server = self.start("server", "server", str(self.layout.server_file))
        up = "the server is up"
        until(lambda: up in server.text or server.process.poll() is not None, PATIENCE, "the server starts")
        assert up in server.text, server.text
        return server

    def prepare_site(self, kit: Path) -> Path:
        """Fill in what the operator of a site would; return its start file."""
        path = kit / "site.toml"
        text = path.read_text().replace('data = ""', f'data = "{self.root / "data" / kit.name}"')
        text = text.replace('cache = ""', f'cache = "{self.root / "cache"}"')
        path.write_text(re.sub(r"port = \d+", f"port = {free_ports(1)[0]}", text))
        return path

    def start_site(self, kit: Path, name: str = "", *options: str) -> Started:
        return self.start(name or kit.name, "site", str(self.prepare_site(kit)), *options)

    def start_run(self, config: Path, out: Path, *options: str) -> Started:
        return self.start("run", "run", str(config), "--on", str(self.layout.root), "--out", str(out), *options)

    def end(self) -> None:
        for started in self.started.values():
            started.ask_to_end()
        for started in self.started.values():
            started.end()


@contextmanager
def ended(federation: Federation) -> Iterator[Federation]:
    """Whatever is started in a federation is ended."""
    try:
        yield federation
    finally:
        federation.end()


def write_digits(folder: Path, classes: Sequence[int], *, first: int = 0, count: int = 20) -> None:
    """Write digits as an image folder, one sub-folder per class, with the images from `first` on of each class."""
    digits = load_digits()
    for label in classes:
        (folder / str(label)).mkdir(parents=True)
        for row in np.flatnonzero(digits.target == label)[first : first + count]:
            Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(folder / str(label) / f"{row}.png")


def events_of(out: Path, kind: type[Event], **match: object) -> list[Logged]:
    """The events of a type that a run has told so far, with fields as given; of what was done again, the last time."""
    with suppress(FileNotFoundError):
        return [
            entry
            for entry in read_events(out).entries
            if isinstance(entry.event, kind)
            and all(getattr(entry.event, name) == value for name, value in match.items())
        ]
    return []


def changed_project(folder: Path, name: str, addition: str) -> Path:
    """A copy of the project: its ClientApp ends with `addition`, and `client` has the module `name` of this folder."""
    for part in ("client", "common", "server", "cli"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, folder)
    shutil.copy(Path(__file__).with_name(f"{name}.py"), folder / "client")
    with (folder / "client" / "app.py").open("a") as code:
        code.write(addition)
    return folder
