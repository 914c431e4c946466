"""CPU seconds of a round by each method beside FedAvg's: `python -m benchmarks.methods_cost`.

Digits, 20 sites, LeNet5, everything in one process and one thread: training, messages, screening, averaging, tests, the
run directory. Each repeat runs FedAvg and every method once, one after the other; what is told are medians over the
repeats, of the seconds and of the ratios to FedAvg in the same repeat. On a busy machine a run is too long to be held
against the next: `--site` takes turns after every training of a single site, and leaves out what the server does.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

# Before NumPy and torch are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch

from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from cli.simulation.preflight import prepare
from client.data.site import load_site
from client.identity import Identity
from client.methods import site_method
from client.methods.method import Visit
from common.config import Config, load
from common.models import get_state
from common.networks import build_for
from common.tensor_names import is_parameter
from server.app import conduct
from server.history.events import Event, StageStarted
from server.listeners import run_listeners
from server.methods import recipe

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"
# What is not to be exceeded, where something is.
AIMS = {
    "fednova": 1.05, "fedadam": 1.05, "fedyogi": 1.05, "fedadagrad": 1.05, "fedper": 1.05, "lg-fedavg": 1.05,
    "scaffold": 1.2, "ditto": 2.1,
}  # fmt: skip
AT_A_SITE = ("fedprox", "per-fedavg", "per-fedavg-hf", "pfedme")
# What their sites are sent, the server has made of what it heard.
OTHERS = ("fedccfa", "ifca", "flexcfl", "cfl-gp")


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
                # At its published rate it diverges here.
                "pfedme.rate": 0.01,
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
        # Their words about every round are not wanted here.
        with redirect_stdout(io.StringIO()):
            conduct(grid, config, [*run_listeners(folder), watch], directory=folder)
    return watch.round


def training(config: Config) -> Callable[[], object]:
    """What a site does in a round from the model it is sent to the update it sends, as often as it is called."""
    settings, method = config.for_site(), site_method(recipe(config).rule)
    network = build_for(settings, settings.seed)
    state = {name: array.copy() for name, array in get_state(network).items()}
    beside = {
        name: {key: np.zeros_like(array) for key, array in state.items() if is_parameter(key)}
        for name in method.agreement.down
    }
    visit = Visit(
        network,
        method.agreement.travelling(state, settings),
        beside,
        {},
        load_site(Identity("000", None, (0, config.sites), None), settings),
        settings,
        2,
        config.rounds,
        0,
        torch.device("cpu"),
    )
    # As in any round but the first: the site remembers.
    visit = replace(visit, memory=method.train(visit).memory or {})
    return lambda: method.train(visit)


def at_a_site(configs: Mapping[str, Config], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of a site's training, the methods in turn."""
    work = {method: training(config) for method, config in configs.items()}
    spent: dict[str, list[float]] = {method: [] for method in configs}
    for _ in range(repeats):
        for method, train in work.items():
            start = time.process_time()
            train()
            spent[method].append(time.process_time() - start)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--site", action="store_true", help="the training of one site alone")
    parser.add_argument("--methods", nargs="+", default=())
    options = parser.parse_args()
    options.methods = options.methods or [*AIMS, *AT_A_SITE, *(() if options.site else OTHERS)]
    logging.disable()
    methods = ["fedavg", *options.methods]
    spent: dict[str, list[float]] = {method: [] for method in methods}
    with TemporaryDirectory() as cache:
        configs = {method: config_of(method, options.rounds, options.epochs, cache) for method in methods}
        if options.site:
            spent = at_a_site(configs, options.repeats)
        else:
            cost(configs["fedavg"])
            for _ in range(options.repeats):
                for method, config in configs.items():
                    spent[method].append(cost(config))
                    print(f"{method} {spent[method][-1]:.3f}", file=sys.stderr, flush=True)
    what = "of a site's training" if options.site else "per round"
    print(f"| method | CPU seconds {what} | ratio to FedAvg | aim |\n|---|---:|---:|---:|")
    for method, seconds in spent.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, spent["fedavg"], strict=True))
        aim = f"{AIMS[method]:.2f}" if method in AIMS else ""
        print(f"| {method} | {statistics.median(seconds):.3f} | {ratio:.2f} | {aim} |")


if __name__ == "__main__":
    main()
