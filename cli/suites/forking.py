"""Runs that need not import their libraries: a process that has done so forks each of them.

`python -m cli.suites.forking` is that process. It reads a line for each run, {"command": [...], "log": path}, forks a
child that carries the command out, says the child's process id, and once it has ended its exit code and CPU seconds.
When nobody speaks to it any more it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PATIENCE = 5.0  # seconds for it to end, if no run is under way


class Fork:
    """A process that forks runs, one at a time; `held` is a file descriptor that it and its runs keep open."""

    def __init__(self, held: int) -> None:
        # One thread: other runs have the other cores. A session of its own: Ctrl-C is passed on once, by whoever asked.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli.suites.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            pass_fds=[held],
        )

    def run(self, command: Sequence[str], log: Path, started: Callable[[int], None]) -> tuple[int, float]:
        """Carry out a coterie command, its words appended to `log`; return its exit code and CPU seconds.

        `started` is told its process id. Raises `OSError` if this process is gone.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": list(command), "log": str(log)}) + "\n")
        self._process.stdin.flush()
        started(int(self._answer()["pid"]))
        ended = self._answer()
        return int(ended["code"]), float(ended["cpu"])

    def close(self) -> None:
        """Let it end when its run has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        # It holds the suite's lock: who begins the suite again right after must find it free.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"the process that starts runs has ended (exit code {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve() -> None:
    # What a library prints while it is imported is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from client.executor.preload import OCCASIONAL, preload

    preload(OCCASIONAL)
    # All that a simulation imports; none of it starts a thread, which a fork would not take along.
    import cli.simulation.engine  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _carry_out(asked["command"], asked["log"])
        print(json.dumps({"pid": child}), file=answers, flush=True)
        _, status, usage = os.wait4(child, 0)
        ended = {"code": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime}
        print(json.dumps(ended), file=answers, flush=True)


def _carry_out(command: list[str], log: str) -> NoReturn:
    """Be the run, and never return into the loop of the process that forked it."""
    code = 1
    try:
        os.setsid()
        os.close(0)
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(words, 1)
        os.dup2(words, 2)
        from cli.main import main

        code = main(command)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    try:
        _serve()
        # At once: what the libraries do when they are left takes them seconds.
        os._exit(0)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
