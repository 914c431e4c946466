"""Kills a small run at every event and inside every write, resumes it, compares: `python -m tests.support.kill_points`.

Every run is a forked child that is ended by SIGKILL. This process carries out one run first, so that the children find
everything loaded, on one thread, because children of a process whose thread pools are up may hang.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch

from common.config import Config, parse
from server.app import conduct
from server.history.events import Event
from server.history.run_directory import open_run
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid

SETTINGS = {
    "sites": 3,
    "rounds": 3,
    "method": "fmcl",
    "data.image_size": 8,
    "data.channels": 1,
    "encoder.name": "random:resnet10t",
    "encoder.image_size": 32,
    "partition.scheme": "disjoint",
    "partition.groups": 2,
    "cluster.k": 2,
    "train.model": "mlp",
    "train.lr": 0.1,
    "train.batch_size": 64,
    "train.fraction": 0.5,
    # Nothing drifts, but the rule's memory is part of the state.
    "migration.rule": "guarded",
}
CALLS = ("fsync", "replace")
COMPARED = ("metrics.csv", "summary.json", "clusters.json", "models/group-0.safetensors", "models/group-1.safetensors")


class Killer:
    """Ends the process at the n-th thing that happens."""

    def __init__(self, at: int) -> None:
        self._left = at

    def hear(self, event: Event) -> None:
        self.count()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Counter(Killer):
    """Counts what happens and ends nothing."""

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def seen(self) -> int:
        return -self._left


def settings(cache: Path, out: Path, resume: str) -> Config:
    return parse(SETTINGS | {"cache": str(cache), "out": str(out), "resume": resume})


def carry_out(config: Config, listener: Killer) -> None:
    torch.set_num_threads(1)
    directory = open_run(config)
    conduct(LoopbackGrid(config.sites), config, [*run_listeners(directory), listener], directory=directory)


def in_a_child(job: Callable[[], None]) -> int:
    """Run a job in a forked child without output; return its exit status as `os.waitpid` has it."""
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            job()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def counted(job: Callable[[Counter], None]) -> int:
    """How many things happen in a job, found out in a child."""
    reading, writing = os.pipe()

    def report() -> None:
        counter = Counter()
        job(counter)
        os.write(writing, str(counter.seen).encode())

    if in_a_child(report) != 0:
        raise SystemExit("the run that nobody kills failed")
    return int(os.read(reading, 32))


def with_calls(config: Config, killer: Killer) -> None:
    """Carry out a run in which the killer counts the system calls that make a checkpoint, before and after each."""

    def around(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            killer.count()
            result = call(*arguments)
            killer.count()
            return result

        return wrapped

    patches = [mock.patch.object(os, name, around(getattr(os, name))) for name in CALLS]
    for patch in patches:
        patch.start()
    carry_out(config, Killer(0))


def kept(path: Path) -> bytes | None:
    """What a run left in a file, without the times and the place, which are never the same."""
    if not path.exists():
        return None
    if path.suffix != ".json":
        return path.read_bytes()
    content = json.loads(path.read_text(encoding="utf-8"))
    return json.dumps({key: value for key, value in content.items() if key not in ("seconds", "left_out")}).encode()


def is_finished(out: Path) -> bool:
    return (out / "run.json").exists() and json.loads((out / "run.json").read_text())["outcome"] == "finished"


def main() -> int:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        cache = root / "cache"
        counter = Counter()
        carry_out(settings(cache, root / "whole", "never"), counter)
        events = counter.seen
        expected = {name: kept(root / "whole" / name) for name in COMPARED}
        assert None not in expected.values()
        calls = counted(lambda counter: with_calls(settings(cache, root / "calls", "never"), counter))
        failures = []
        for kind, total, job in (("event", events, carry_out), ("call", calls, with_calls)):
            for at in range(1, total + 1):
                out = root / f"{kind}-{at}"
                status = in_a_child(lambda: job(settings(cache, out, "never"), Killer(at)))  # noqa: B023
                killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                if not is_finished(out):
                    in_a_child(lambda: carry_out(settings(cache, out, "auto"), Killer(0)))  # noqa: B023
                wrong = [name for name, content in expected.items() if kept(out / name) != content]
                if not killed or not is_finished(out) or wrong:
                    failures.append(f"{kind} {at}: killed {killed}, finished {is_finished(out)}, differs {wrong}")
        print(f"{events} events and {calls} moments around system calls, {len(failures)} failures")
        print("\n".join(failures))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
