"""Seconds per simulated round beside stock Flower FedAvg: `python -m benchmarks.rounds`.

Both run on Flower's simulation engine with the same workers, network, data shares and training loop. The stock app is
what Flower's tutorials show: Flower's own FedAvg strategy and a ClientApp that trains and evaluates.

A round is what lies between the beginnings of two: training and test of all sites, in one exchange here and in two
there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.stock_fedavg import network, settings, stock_client
from cli.simulation.engine import run_engine
from client.app import app as our_client
from common.config import Config
from server.app import conduct
from server.history.events import Event, StageStarted
from server.listeners import run_listeners


class Stopwatch:
    """Notes when each round begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, StageStarted) and event.stage == "train":
            self.times.append(time.perf_counter())

    @property
    def rounds(self) -> list[float]:
        """Durations, without the first round, in which the workers import torch."""
        return [after - before for before, after in pairwise(self.times[1:])]


def ours(config: Config) -> list[float]:
    watch = Stopwatch()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / "models").mkdir()
            conduct(grid, config, [*run_listeners(Path(folder)), watch])

    run_engine(app, our_client, config.sites)
    return watch.rounds


def stock(config: Config) -> list[float]:
    watch = Stopwatch()
    app = ServerApp()

    def tick(round_number: int, arrays: ArrayRecord) -> None:
        watch.times.append(time.perf_counter())

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        FedAvg(min_available_nodes=config.sites).start(
            grid=grid,
            initial_arrays=ArrayRecord(network().state_dict()),
            num_rounds=config.rounds,
            evaluate_fn=tick,
        )

    run_engine(app, stock_client, config.sites)
    # A tick ends a round and begins the next; the last begins none.
    watch.times.pop()
    return watch.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    repeats = parser.parse_args().repeats
    config = settings()
    seconds: dict[str, list[float]] = {"Coterie": [], "stock Flower FedAvg": []}
    for _ in range(repeats):
        seconds["Coterie"] += ours(config)
        seconds["stock Flower FedAvg"] += stock(config)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{config.sites} sites, {config.train.model}, digits; median of {len(seconds['Coterie'])} rounds each.\n")
    print("| | seconds per round | ratio |\n|---|---:|---:|")
    for name, value in medians.items():
        print(f"| {name} | {value:.3f} | {value / medians['stock Flower FedAvg']:.2f} |")


if __name__ == "__main__":
    main()
