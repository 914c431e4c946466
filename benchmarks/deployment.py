"""Seconds per round and memory of 20 sites as processes on this machine, with TLS and site keys, cold and warm.

Run with `python -m benchmarks.deployment [--sites 20] [--rounds 3]`. Cold is Flower's own way, a new process that
imports torch for every message; warm is the executor that all sites of a machine share.

A round is what lies between the beginnings of two; the last one lasts until its models are tested. So it holds the
training and the test of all sites, however many exchanges those take, and can be compared with older figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from server.history.events import GroupsFormed, ReplyAccepted, RoundFinished, StageStarted
from tests.support.federation import Federation, descendants, ended, events_of, free_ports, until

_LONGEST = 3600.0  # seconds that a run may take
_LOOK = 5.0  # seconds between two looks at the memory: a look takes the kernel a while
_CONFIG = """
[data]
image_size = 16
channels = 1
[encoder]
image_size = 64
[train]
model = "lenet5"
lr = 0.05
batch_size = 16
[round]
start_timeout = 600.0
"""


@dataclass(frozen=True)
class Measured:
    """Of one run: seconds for the signatures, seconds per round, and most memory of all sites together.

    `down` and `up` are the megabytes that a site is sent in a round, and sends.
    """

    signatures: float
    rounds: list[float]
    site_megabytes: float
    down: float
    up: float


def main() -> int:
    """Measure both ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| | signatures | a round | memory of all sites |")
    print("|---|---:|---:|---:|")
    for title, flags in (("warm executor", ()), ("cold (`--cold`)", ("--cold", "--set", "foreign_code=any"))):
        found = measure(options.sites, options.rounds, *flags)
        each = statistics.median(found.rounds)
        print(
            f"| {title} | {found.signatures:.1f} s | {each:.1f} s | {found.site_megabytes / 1000:.1f} GB |", flush=True
        )
    return 0


def measure(sites: int, rounds: int, *flags: str, settings: Sequence[str] = ()) -> Measured:
    """Run FMCL, or what the settings say, on `sites` shares of the digits."""
    names = [f"site-{number:02d}" for number in range(sites)]
    with tempfile.TemporaryDirectory(prefix="coterie-deployment-") as folder:
        root = Path(folder)
        (root / "run.toml").write_text(_CONFIG)
        with ended(Federation(root)) as federation:
            federation.provision(names)
            federation.start_server()
            files = [share_of_digits(federation, name, number, sites) for number, name in enumerate(names)]
            started = federation.start("sites", "site", *map(str, files), *flags)
            meter = _Meter(started.process.pid)
            out = root / "out"
            run = federation.start_run(root / "run.toml", out, "--set", f"rounds={rounds}", *settings)
            until(lambda: run.process.poll() is not None, _LONGEST, "the run ends")
            if run.process.returncode:
                raise SystemExit(run.text[-3000:])
            megabytes = meter.stop()
        begun = [entry.time for entry in events_of(out, StageStarted, stage="train")]
        (ended_at,) = [entry.time for entry in events_of(out, RoundFinished, round_number=rounds)]
        (asked,), (formed,) = events_of(out, StageStarted, stage="enrol"), events_of(out, GroupsFormed)
        seconds = [after - before for before, after in pairwise([*begun, ended_at])]
        said = [entry.event for entry in events_of(out, ReplyAccepted) if isinstance(entry.event, ReplyAccepted)]
        rounds_of = [event for event in said if event.stage in ("agree", "train", "open")]
        down, up = sum(event.bytes_sent for event in rounds_of), sum(event.bytes_received for event in rounds_of)
        return Measured(
            formed.time - asked.time, seconds, megabytes, down / sites / rounds / 1e6, up / sites / rounds / 1e6
        )


def share_of_digits(federation: Federation, name: str, number: int, count: int) -> Path:
    """The start file of a site that has a share of the digits."""
    path = federation.layout.kit(name) / "site.toml"
    text = path.read_text().replace("port = 9094", f"port = {free_ports(1)[0]}")
    text = text.replace('cache = ""', f'cache = "{federation.root / "cache"}"')
    path.write_text(f"{text}\npartition = {number}\npartitions = {count}\n")
    return path


class _Meter:
    """The most memory that a process and all below it take; pages that several of them share are counted once."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._done = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(_LOOK):
            total = 0
            for pid in (self._pid, *descendants(self._pid)):
                with suppress(OSError):
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            self._peak = max(self._peak, total)

    def stop(self) -> float:
        """Return the peak in megabytes."""
        self._done.set()
        self._thread.join()
        return self._peak / 1000


if __name__ == "__main__":
    sys.exit(main())
