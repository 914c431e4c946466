"""Seconds per round and memory of a federation in containers: `python -m benchmarks.containers --sites 20`.

Needs a running Docker engine and the image `coterie` (docker/Dockerfile). Starts the containers of docker/compose.py
under a project name of its own, runs FMCL on handwritten digits, and removes them again.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from server.history.event_log import read_events
from server.history.events import ReplyAccepted, RoundFinished, StageStarted

ROOT = Path(__file__).parents[1]
PROJECT = "coterie-benchmark"
_UNITS = {"B": 1, "kB": 1e3, "KiB": 2**10, "MiB": 2**20, "MB": 1e6, "GiB": 2**30, "GB": 1e9}


def compose_command() -> list[str]:
    """Return the new `docker compose` or the old `docker-compose`."""
    new = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if new.returncode == 0 else ["docker-compose"]


def memory() -> dict[str, float]:
    """Return the bytes that each container holds, without the page cache, as its control group counts them."""
    line = ["docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^{PROJECT}[_-](\S+) ([\d.]+)([A-Za-z]+) ", said, re.MULTILINE)
    return {name: float(number) * _UNITS[unit] for name, number, unit in found}


def available() -> float:
    """Return the bytes of memory that this machine could still give."""
    return int(re.findall(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[0]) * 1024


@dataclass
class Watch:
    """Looks at the memory every few seconds and keeps the largest."""

    sites: float = 0.0
    server: float = 0.0
    machine: float = 0.0
    _before: float = field(default_factory=available)

    @contextmanager
    def looking(self) -> Iterator[None]:
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(3):
                self.machine = max(self.machine, self._before - available())
                held = memory()
                self.server = max(self.server, sum(value for name, value in held.items() if name.startswith("server")))
                self.sites = max(self.sites, sum(value for name, value in held.items() if name.startswith("site-")))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def measure(sites: int, rounds: int) -> None:
    """Run once and print one row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "compose.yaml"
        write = [sys.executable, str(ROOT / "docker" / "compose.py"), "--sites", str(sites)]
        text = subprocess.run(write, check=True, capture_output=True, text=True).stdout
        file.write_text(text.replace("${COTERIE_RUNS:-./runs}", f"{folder}/runs"), encoding="utf-8")
        line = [*compose_command(), "-p", PROJECT, "--project-directory", str(ROOT), "-f", str(file)]
        watch = Watch()
        try:
            with watch.looking():
                began = time.monotonic()
                subprocess.run([*line, "up", "-d", "--no-build"], check=True, capture_output=True)
                up = time.monotonic() - began
                submit = ["run", "--rm", "-T", "submit", "configs/digits.toml", "--set", f"rounds={rounds}"]
                subprocess.run([*line, *submit], check=True, stdout=sys.stderr)
        finally:
            subprocess.run([*line, "down", "-v", "-t", "5"], check=True, capture_output=True)
        (log,) = Path(folder).glob("runs/*/events.jsonl")
        entries = read_events(log.parent).entries
    ends = [entry.time for entry in entries if isinstance(entry.event, RoundFinished)]
    stages = [(entry.time, entry.event.stage) for entry in entries if isinstance(entry.event, StageStarted)]
    first = next(at for at, stage in stages if stage == "enrol")
    begun = [at for at, stage in stages if stage == "train"]
    train = begun[0]
    # From the beginning of a round to that of the next; the last one lasts until its models are tested.
    seconds = [after - before for before, after in pairwise([*begun, ends[-1]])]
    replies = [entry.event for entry in entries if isinstance(entry.event, ReplyAccepted)]
    heard = {reply.site for reply in replies if reply.round_number == rounds}
    assert len(heard) == sites, f"only {len(heard)} sites took part in the last round"
    print("| containers | up | signature stage | round, median | slowest | all sites | one site | server | machine |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    cells = (f"{up:.0f} s", f"{train - first:.1f} s", f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s")
    held = (watch.sites, watch.sites / sites, watch.server, watch.machine)
    print(f"| {sites} | {' | '.join(cells)} | {' | '.join(f'{value / 1e9:.2f} GB' for value in held)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20, help="number of client containers")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    measure(options.sites, options.rounds)


if __name__ == "__main__":
    main()
