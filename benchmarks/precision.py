"""What fewer bytes an update cost in accuracy: `python -m benchmarks.precision`.

Digits dealt out to 20 sites with strong label skew; LeNet5 from pixels and a head on the frozen encoder, one model for
all and groups. Beside the precisions there are: int8 without the memory of what was not said, with a model that also
goes down in float16, and with only the largest changes sent.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args
from unittest import mock

import numpy as np

from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from common import wire
from common.config import Config, Precision, load
from common.state import State
from common.wire.precision import shorten
from server.app import conduct
from server.history.events import Event, ReplyAccepted, RoundFinished
from server.methods.training import TrainingRule

CONFIGS = Path(__file__).parents[1] / "configs"
MODELS = {"LeNet5": "digits.toml", "head": "demo.toml"}
METHODS = ("fedavg", "fmcl")
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SENT = 0.05  # share of the changes of a tensor that is sent where only the largest are


@dataclass
class Found:
    """What came of a run.

    Attributes
    ----------
    right, samples
        Of the last test.
    received
        Bytes of updates, with what travels beside them.
    """

    right: int = 0
    samples: int = 0
    received: int = 0

    def hear(self, event: Event) -> None:
        """Note it."""
        if isinstance(event, ReplyAccepted) and event.stage == "train":
            self.received += event.bytes_received
        elif isinstance(event, RoundFinished):
            self.samples = sum(metrics.count for metrics in event.sites.values())
            self.right = sum(round(metrics.accuracy * metrics.count) for metrics in event.sites.values())


def forgetful(after: State, before: State, unsaid: State, precision: Precision) -> tuple[State, State]:
    """Nothing is remembered."""
    return shorten(after, before, {}, precision)


def sparse(after: State, before: State, unsaid: State, precision: Precision) -> tuple[State, State]:
    """The largest changes of each tensor are sent; all others are left unsaid."""
    kept, rest = dict(after), {}
    for name, array in after.items():
        change = array - before[name] + unsaid.get(name, 0)
        least = np.quantile(np.abs(change), 1 - SENT) if change.size else 0
        told = np.where(np.abs(change) >= least, change, 0)
        kept[name], rest[name] = (before[name] + told).astype(array.dtype), change - told
    sent, left = shorten(kept, before, {}, precision)
    return sent, {name: (array + rest[name]).astype(np.float32) for name, array in left.items()}


@contextmanager
def down_in_float16() -> Iterator[None]:
    """Groups' models are rounded before they go down."""

    def close(self: TrainingRule, group: int, before: State, mean: State, samples: int) -> State:
        return {name: array.astype(np.float16).astype(array.dtype) for name, array in mean.items()}

    with mock.patch.object(TrainingRule, "close", close):
        yield


VARIANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing remembered": lambda: mock.patch.object(wire, "shorten", forgetful),
    "the model goes down in float16": down_in_float16,
    f"the largest {SENT:.0%} of the changes": lambda: mock.patch.object(wire, "shorten", sparse),
}


def run(config: Config) -> Found:
    """One run, in one process."""
    found = Found()
    with TemporaryDirectory() as folder:
        conduct(OneProcessGrid(client_app, config.sites, threading.Event()), config, [found], directory=Path(folder))
    return found


def measured(precision: str, file: str, method: str, seeds: int) -> str:
    """The mean accuracy, and megabytes received."""
    overrides = {
        "method": method, "wire.precision": precision,
        "cluster.choice": "silhouette", "checkpoint": 0, "test.every": 5,
    }  # fmt: skip
    runs = [run(load(CONFIGS / file, {**overrides, "seed": seed})) for seed in range(seeds)]
    accuracy = statistics.mean(one.right / one.samples for one in runs)
    return f"{accuracy:.3f} | {statistics.mean(one.received for one in runs) / 1e6:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("coterie").setLevel(logging.ERROR)
    columns = [(model, method) for model in MODELS for method in METHODS]
    print("| `wire.precision` | " + " | ".join(f"{model}, {method} | MB" for model, method in columns) + " |")
    print("|---|" + "---:|---:|" * len(columns))
    for precision in PRECISIONS:
        cells = [measured(precision, MODELS[model], method, seeds) for model, method in columns]
        print(f"| {precision} | " + " | ".join(cells) + " |", flush=True)
    print("\n| int8, LeNet5, fedavg | accuracy | MB |\n|---|---:|---:|")
    for name, changed in VARIANTS.items():
        with changed():
            print(f"| {name} | {measured('int8', MODELS['LeNet5'], 'fedavg', seeds)} |", flush=True)


if __name__ == "__main__":
    main()
