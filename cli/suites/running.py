"""Carries out the runs of a suite, some at a time, each in a process of its own that is forked and not started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cli.suites.forking import Fork
from cli.suites.suite import Cell
from cli.toml_text import settings_toml
from common.config import SettingsError
from common.foreign import read_json
from server.history import run_directory
from server.history.run_directory import is_finished, write_json

LOG, SETTINGS, COST = "simulate.log", "config.toml", "cost.json"
_LAST_LINES = 3
_LOOK = 1.0  # seconds between two looks at the runs


@dataclass(frozen=True)
class Progress:
    """How far a suite is: runs done of all, share of all rounds done, seconds left (None: not known yet)."""

    done: int
    total: int
    share: float
    left: float | None


def simulated(settings: Path) -> list[str]:
    """Carry a cell out as a simulation, one site at a time: other cells have the other cores."""
    return ["simulate", str(settings), "--jobs", "1"]


def on_federation(folder: Path) -> Callable[[Path], list[str]]:
    """Carry cells out on the sites of a federation."""
    return lambda settings: ["run", str(settings), "--on", str(folder)]


class SuiteRunner:
    """Runs cells, `jobs` at a time, each by a command of its own.

    Parameters
    ----------
    jobs
        Runs at the same time.
    lock
        Of the suite's folder; runs hold it, too, so that a suite whose first process was killed is not begun twice.
    say
        Is told in words of every run that ends.
    show
        Is told every second how far the suite is.
    command
        How a cell is carried out whose settings are in a file: by a simulation, or on a federation.
    """

    def __init__(
        self,
        jobs: int,
        lock: int,
        say: Callable[[str], None],
        show: Callable[[Progress], None],
        command: Callable[[Path], Sequence[str]] = simulated,
    ) -> None:
        self._jobs = jobs
        self._command = command
        self._held = lock
        self._say = say
        self._show = show
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._running: set[int] = set()
        # One for each run at a time, made when it is first needed.
        self._idle: list[Fork] = []
        self._failed = 0
        self._done = 0

    def run(self, cells: Sequence[Cell]) -> int:
        """Carry out what is not finished yet; return how many failed. Ctrl-C ends those under way in order."""
        waiting = [cell for cell in cells if not is_finished(Path(cell.config.out), cell.config)]
        self._done = len(cells) - len(waiting)
        if self._done:
            self._say(f"{self._done} of {len(cells)} runs are there already")
        before, start = self._share(cells), time.monotonic()
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                futures = [pool.submit(self._carry_out, cell, len(cells)) for cell in waiting]
                while not all(future.done() for future in futures):
                    time.sleep(_LOOK)
                    self._show(self._progress(cells, before, start))
                for future in futures:
                    future.result()
            except BaseException:
                self._interrupt()
                raise
            finally:
                pool.shutdown()
                for fork in self._idle:
                    fork.close()
        return self._failed

    def _progress(self, cells: Sequence[Cell], before: float, start: float) -> Progress:
        share = self._share(cells)
        gained = share - before
        left = (time.monotonic() - start) * (1 - share) / gained if gained > 0 else None
        return Progress(self._done, len(cells), share, left)

    def _share(self, cells: Sequence[Cell]) -> float:
        return sum(_share_done(cell) for cell in cells) / len(cells)

    def _interrupt(self) -> None:
        self._stop.set()
        with self._lock:
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)

    def _carry_out(self, cell: Cell, total: int) -> None:
        if self._stop.is_set():
            return
        folder = Path(cell.config.out)
        start = time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SETTINGS).write_text(settings_toml(cell.config) + "\n", encoding="utf-8")
            code, cpu = self._spawn(folder)
            _add_cost(folder, time.monotonic() - start, cpu)
            reason = (_last_words(folder / LOG) or f"exit code {code}") if code else ""
        except OSError as error:
            reason = str(error)
        if self._stop.is_set():
            return
        with self._lock:
            if reason:
                self._failed += 1
                self._say(f"FAILED {cell}: {reason} (see {folder / LOG})")
            else:
                self._done += 1
                self._say(f"{self._done}/{total} {cell}: {time.monotonic() - start:.0f} s")

    def _spawn(self, folder: Path) -> tuple[int, float]:
        """Run one cell; return its exit code and its CPU seconds, without those that imports took."""
        with self._lock:
            fork = self._idle.pop() if self._idle else None
        fork = fork or Fork(self._held)
        pids: list[int] = []

        def started(pid: int) -> None:
            with self._lock:
                self._running.add(pid)
            pids.append(pid)

        try:
            ended = fork.run(self._command(folder / SETTINGS), folder / LOG, started)
        finally:
            with self._lock:
                self._running.difference_update(pids)
        with self._lock:
            self._idle.append(fork)
        return ended


def _share_done(cell: Cell) -> float:
    """Share of a run's rounds that are done, by its growing table."""
    try:
        with (Path(cell.config.out) / run_directory.METRICS).open("rb") as table:
            rounds = sum(b",overall," in line for line in table)
    except OSError:
        return 0.0
    return min(rounds / cell.config.rounds, 1.0) if cell.config.rounds else 1.0


def _add_cost(folder: Path, seconds: float, cpu: float) -> None:
    """What a run has cost so far, over all the processes that worked on it."""
    before = read_cost(folder)
    write_json(folder / COST, {"seconds": before["seconds"] + seconds, "cpu_seconds": before["cpu_seconds"] + cpu})


def read_cost(folder: Path) -> dict[str, float]:
    """Wall-clock and CPU seconds of a run."""
    try:
        kept = read_json(folder / COST)
        return {key: float(kept[key]) for key in ("seconds", "cpu_seconds")}
    except (OSError, ValueError, KeyError, TypeError):
        return {"seconds": 0.0, "cpu_seconds": 0.0}


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-500:]


def check_cells(cells: Sequence[Cell]) -> None:
    """Raise unless every folder is free, unfinished, or holds the finished run of the same settings."""
    faults = []
    for cell in cells:
        try:
            is_finished(Path(cell.config.out), cell.config)
        except SettingsError as error:
            faults.append(str(error))
    if faults:
        more = f"\nand {len(faults) - 3} more" if len(faults) > 3 else ""
        raise SettingsError("\n".join(faults[:3]) + more)
