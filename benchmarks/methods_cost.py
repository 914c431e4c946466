"""CPU seconds of a round by each method beside FedAvg's: `python -m benchmarks.methods_cost`.

Digits, 20 sites, LeNet5, everything in one process and one thread: training, messages, screening, averaging, tests, the
run directory. Each repeat runs FedAvg and every method once, one after the other; what is told are medians over the
repeats, of the seconds and of the ratios to FedAvg in the same repeat.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

# Before NumPy and torch are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from cli.simulation.preflight import prepare
from common.config import Config, load
from server.app import conduct
from server.history.events import Event, StageStarted
from server.listeners import run_listeners

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"
# What is not to be exceeded, where something is.
AIMS = {
    "fednova": 1.05, "fedadam": 1.05, "fedyogi": 1.05, "fedadagrad": 1.05, "fedper": 1.05, "lg-fedavg": 1.05,
    "scaffold": 1.2, "ditto": 2.1,
}  # fmt: skip
OTHERS = ("fedprox", "per-fedavg", "per-fedavg-hf", "pfedme", "fedccfa", "ifca", "flexcfl", "cfl-gp")


class Stopwatch:
    """Notes the CPU seconds at which rounds begin."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, StageStarted) and event.stage == "train":
            self.times.append(time.process_time())

    @property
    def round(self) -> float:
        """The median of the rounds but the first, in which sites read their data."""
        return statistics.median(after - before for before, after in pairwise(self.times[1:]))


def config_of(method: str, rounds: int, epochs: int, cache: str) -> Config:
    return prepare(
        load(
            CONFIG,
            {
                "method": method, "rounds": rounds, "train.epochs": epochs, "train.lr": 0.01, "checkpoint": 0,
                "cluster.k": 3 if method in ("ifca", "flexcfl", "cfl-gp") else 0, "train.prior": "off", "cache": cache,
            },
        )
    )  # fmt: skip


def cost(config: Config) -> float:
    """CPU seconds of a round."""
    watch = Stopwatch()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").mkdir()
        grid = OneProcessGrid(client_app, config.sites, threading.Event())
        conduct(grid, config, [*run_listeners(folder), watch], directory=folder)
    return watch.round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=[*AIMS, *OTHERS])
    options = parser.parse_args()
    logging.disable()
    methods = ["fedavg", *options.methods]
    spent: dict[str, list[float]] = {method: [] for method in methods}
    with TemporaryDirectory() as cache:
        configs = {method: config_of(method, options.rounds, options.epochs, cache) for method in methods}
        cost(configs["fedavg"])
        for _ in range(options.repeats):
            for method, config in configs.items():
                spent[method].append(cost(config))
    print("| method | CPU seconds per round | ratio to FedAvg | aim |\n|---|---:|---:|---:|")
    for method, seconds in spent.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, spent["fedavg"], strict=True))
        aim = f"{AIMS[method]:.2f}" if method in AIMS else ""
        print(f"| {method} | {statistics.median(seconds):.3f} | {ratio:.2f} | {aim} |")


if __name__ == "__main__":
    main()
