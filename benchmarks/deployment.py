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
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import stock_flower
from benchmarks.measured import Measured, Meter, cpu_seconds
from server.history.events import GroupsFormed, ReplyAccepted, RoundFinished, StageStarted
from tests.support.federation import Federation, ended, events_of, free_ports, until

_LONGEST = 3600.0  # seconds that a run may take
CONFIG = """
[data]
image_size = 16
channels = 1
[encoder]
image_size = 64
[train]
model = "{model}"
lr = 0.05
batch_size = 16
[round]
start_timeout = 600.0
"""


def main() -> int:
    """Measure all ways asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--cold", action="store_true", help="also a new process for every message")
    parser.add_argument("--stock", type=int, default=0, metavar="ROUNDS", help="also stock Flower, so many rounds")
    options = parser.parse_args()
    print(f"{options.sites} sites, {options.model}, {options.rounds} rounds")
    print("| | signatures | a round | of it training | memory of all sites | CPU seconds a round |")
    print("|---|---:|---:|---:|---:|---|")
    ways: dict[str, tuple[str, ...]] = {"warm executor": ()}
    if options.cold:
        ways["cold (`--cold`)"] = ("--cold", "--set", 'foreign_code=["any"]')
    for title, flags in ways.items():
        _show(title, measure(options.sites, options.rounds, *flags, model=options.model))
    if options.stock:
        _show("stock Flower", stock_flower.measure(options.sites, options.stock))
    return 0


def _show(title: str, found: Measured) -> None:
    each, training = statistics.median(found.rounds), statistics.median(found.training or [float("nan")])
    cpu = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.cpu.items())
    first = f"| {title} | {found.signatures:.1f} s | {each:.2f} s | {training:.2f} s "
    print(f"{first}| {found.site_megabytes / 1000:.1f} GB | {cpu} |", flush=True)


def measure(sites: int, rounds: int, *flags: str, settings: Sequence[str] = (), model: str = "lenet5") -> Measured:
    """Run FMCL, or what the settings say, on `sites` shares of the digits."""
    names = [f"site-{number:02d}" for number in range(sites)]
    with tempfile.TemporaryDirectory(prefix="coterie-deployment-") as folder:
        root = Path(folder)
        (root / "run.toml").write_text(CONFIG.format(model=model))
        with ended(Federation(root)) as federation:
            federation.provision(names)
            server = federation.start_server()
            files = [share_of_digits(federation, name, number, sites) for number, name in enumerate(names)]
            started = federation.start("sites", "site", *map(str, files), *flags)
            meter = Meter(started.process.pid)
            out = root / "out"
            chosen = [part for one in (f"rounds={rounds}", *settings) for part in ("--set", one)]
            run = federation.start_run(root / "run.toml", out, *chosen)
            until(lambda: events_of(out, StageStarted, stage="train") or run.process.poll(), _LONGEST, "training")
            before = cpu_seconds(server.process.pid, started.process.pid)
            until(lambda: events_of(out, RoundFinished, round_number=rounds) or run.process.poll(), _LONGEST, "the end")
            after = cpu_seconds(server.process.pid, started.process.pid)
            until(lambda: run.process.poll() is not None, _LONGEST, "the run ends")
            if run.process.returncode:
                raise SystemExit(run.text[-3000:])
            megabytes = meter.stop()
        begun = [entry.time for entry in events_of(out, StageStarted, stage="train")]
        (ended_at,) = [entry.time for entry in events_of(out, RoundFinished, round_number=rounds)]
        (asked,), (formed,) = events_of(out, StageStarted, stage="enrol"), events_of(out, GroupsFormed)
        seconds = [after - before for before, after in pairwise([*begun, ended_at])]
        said = [entry.event for entry in events_of(out, ReplyAccepted) if isinstance(entry.event, ReplyAccepted)]
        training = [0.0] * rounds
        for event in said:
            if event.stage == "train":
                training[event.round_number - 1] += event.seconds
        rounds_of = [event for event in said if event.stage in ("agree", "train", "open")]
        down, up = sum(event.bytes_sent for event in rounds_of), sum(event.bytes_received for event in rounds_of)
        cpu = {name: (after[name] - before.get(name, 0.0)) / rounds for name in after}
        each = sites * rounds * 1e6
        return Measured(formed.time - asked.time, seconds, megabytes, cpu, training, down / each, up / each)


def share_of_digits(federation: Federation, name: str, number: int, count: int) -> Path:
    """The start file of a site that has a share of the digits."""
    path = federation.layout.kit(name) / "site.toml"
    text = path.read_text().replace("port = 9094", f"port = {free_ports(1)[0]}")
    text = text.replace('cache = ""', f'cache = "{federation.root / "cache"}"')
    path.write_text(f"{text}\npartition = {number}\npartitions = {count}\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
