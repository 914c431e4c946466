"""Memory, database and files over many rounds: `python -m benchmarks.soak [--rounds 500] [--federation 3 100]`.

First a simulation in one process, looked at from outside every 50 rounds; then, if asked for, a real federation of so
many sites (TLS, keys, processes) for so many rounds, with its SuperLink, ServerApp, SuperNodes and executor. The
network is tiny and the data are the digits, so that rounds are quick: what grows with a round grows here, too.

A line is a look; the slope is that of a straight line through the second half of the looks, per 100 rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.deployment import share_of_digits
from server.history.run_directory import METRICS
from tests.support.federation import Federation, alive, descendants, ended

_LOOK = 0.1  # seconds between two looks at how far the run is
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CONFIG = """
[data]
image_size = 16
channels = 1
[encoder]
image_size = 64
[train]
model = "{model}"
lr = 0.05
[cluster]
k = 2
"""

# Megabytes by what they are of.
Sizes = dict[str, float]


@dataclass(frozen=True)
class Look:
    """How large everything was after a round."""

    round_number: int
    sizes: Sizes


def main() -> int:
    """Measure, print tables, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--every", type=int, default=50, help="rounds between two looks")
    parser.add_argument("--models", nargs="*", default=["lenet5", "head"])
    parser.add_argument("--federation", type=int, nargs=2, metavar=("SITES", "ROUNDS"), default=(0, 0))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Look]] = {}
    for model in options.models:
        title = f"one process, {model}, {options.sites} sites"
        found[title] = simulated(model, options.sites, options.rounds, options.every)
        show(title, found[title])
    sites, rounds = options.federation
    if sites:
        title = f"federation of {sites} sites, lenet5"
        found[title] = federated(sites, rounds, max(rounds // 10, 1))
        show(title, found[title])
    if options.picture:
        draw(found, options.picture)
    return 0


def simulated(model: str, sites: int, rounds: int, every: int) -> list[Look]:
    """Run `coterie simulate` on one core, without an engine."""
    with tempfile.TemporaryDirectory(prefix="coterie-soak-") as folder:
        root = Path(folder)
        (root / "run.toml").write_text(_CONFIG.format(model=model))
        out = root / "out"
        command = [
            sys.executable,
            "-m",
            "cli.main",
            "simulate",
            str(root / "run.toml"),
            "--jobs",
            "1",
            "--out",
            str(out),
        ]
        command += ["--set", f"rounds={rounds}", "--set", f"sites={sites}", "--set", f"cache={root / 'cache'}"]
        with (root / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            looks = watch(
                out,
                every,
                lambda: process.poll() is None,
                lambda: {"process": resident(process.pid), "run directory": size(out)},
            )
        if process.returncode:
            raise SystemExit((root / "log").read_text()[-3000:])
    return looks


def federated(sites: int, rounds: int, every: int) -> list[Look]:
    """Run FMCL on `sites` shares of the digits, each site with a SuperNode, one warm executor for all."""
    names = [f"site-{number}" for number in range(sites)]
    with tempfile.TemporaryDirectory(prefix="coterie-soak-") as folder:
        root = Path(folder)
        (root / "run.toml").write_text(_CONFIG.format(model="lenet5"))
        with ended(Federation(root)) as federation:
            federation.provision(names)
            server = federation.start_server()
            files = [share_of_digits(federation, name, number, sites) for number, name in enumerate(names)]
            started = federation.start("sites", "site", *map(str, files))
            out = root / "out"
            run = federation.start_run(root / "run.toml", out, "--set", f"rounds={rounds}")

            def sizes() -> Sizes:
                return {
                    "SuperLink": largest(server.process.pid, "cli.deployment.superlink"),
                    "ServerApp": largest(server.process.pid, "flwr-serverapp"),
                    "SuperNode": largest(started.process.pid, "cli.deployment.supernode"),
                    "executor": largest(started.process.pid, "client.executor"),
                    "run directory": size(out),
                    "state.db": sum(path.stat().st_size for path in federation.layout.server.glob("state.db*")) / 1e6,
                    "a site's kit": size(files[0].parent),
                }

            looks = watch(out, every, lambda: alive(run.process.pid) and run.process.poll() is None, sizes)
            if run.process.wait():
                raise SystemExit(run.text[-3000:])
    return looks


def watch(out: Path, every: int, goes_on: Callable[[], bool], sizes: Callable[[], Sizes]) -> list[Look]:
    """Look at the sizes each time that so many rounds more have been tested."""
    looks: list[Look] = []
    due = every
    while goes_on():
        if (done := rounds_done(out)) >= due:
            looks.append(Look(done, sizes()))
            due = done - done % every + every
        time.sleep(_LOOK)
    return looks


def rounds_done(out: Path) -> int:
    """Rounds that stand in the table of a run."""
    with suppress(OSError):
        return sum(b",overall," in line for line in (out / METRICS).read_bytes().splitlines())
    return 0


def resident(pid: int) -> float:
    """Megabytes that a process has in memory; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6
    return 0.0


def largest(pid: int, name: str) -> float:
    """Megabytes of the largest process below `pid` whose command has `name` in it."""
    return max((resident(one) for one, command in descendants(pid).items() if name in command), default=0.0)


def size(folder: Path) -> float:
    """Megabytes of the files in a folder; some may go while they are counted."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 1e6


def slopes(looks: Sequence[Look]) -> Mapping[str, float]:
    """Megabytes per 100 rounds, in the second half."""
    late = looks[len(looks) // 2 :]
    if len(late) < 2:
        return {}
    rounds = [look.round_number for look in late]
    return {name: 100 * float(np.polyfit(rounds, [look.sizes[name] for look in late], 1)[0]) for name in late[0].sizes}


def show(title: str, looks: Sequence[Look]) -> None:
    """Print a table of megabytes."""
    names = list(looks[0].sizes)
    print(f"\n{title}; MB\n\n| round | {' | '.join(names)} |\n|---:{'|---:' * len(names)}|")
    for look in looks:
        print(f"| {look.round_number} | {' | '.join(f'{look.sizes[name]:.1f}' for name in names)} |")
    rates = slopes(looks)
    print(f"| per 100 rounds | {' | '.join(f'{rates[name]:+.2f}' if rates else '' for name in names)} |", flush=True)


def draw(found: Mapping[str, Sequence[Look]], path: Path) -> None:
    """One panel for what is in memory and one for what is on disk, for each run."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(found), figsize=(4.2 * len(found), 5), squeeze=False)
    for column, (title, looks) in enumerate(found.items()):
        rounds = [look.round_number for look in looks]
        for name in looks[0].sizes:
            on_disk = name in ("run directory", "state.db", "a site's kit")
            axes[int(on_disk), column].plot(rounds, [look.sizes[name] for look in looks], label=name, marker=".")
        axes[0, column].set_title(title, fontsize=9)
        for row, what in enumerate(("in memory, MB", "on disk, MB")):
            axes[row, column].set(xlabel="round", ylabel=what)
            axes[row, column].set_ylim(0, 1.15 * axes[row, column].get_ylim()[1])
            axes[row, column].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
