"""What one, two and three of ten sites can do to the others: `python -m benchmarks.poisoning`.

Digits, a head on the frozen encoder, FedAvg, Dirichlet(0.5) labels. Attackers answer over the same wire as everybody;
the figure is the accuracy of the honest sites' test samples after the last round, mean over the seeds.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import threading
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from client.data import SiteData
from common import wire
from common.config import Config, parse
from common.state import State
from server.app import conduct
from server.history.events import Event, RoundFinished

SITES, ROUNDS, CLASSES = 10, 20, 10
BASE = {
    "method": "fedavg", "sites": SITES, "rounds": ROUNDS, "partition.alpha": 0.5, "test.every": ROUNDS,
    "data.image_size": 16, "data.channels": 1, "encoder.image_size": 64,
    "train.model": "head", "train.prior": "site", "checkpoint": 0,
}  # fmt: skip
RULES: dict[str, dict[str, str | float]] = {
    "mean": {},
    "mean, cap 3": {"aggregate.cap": 3.0},
    "clipped, cap 3": {"aggregate.rule": "clipped", "aggregate.cap": 3.0},
    "trimmed 0.3": {"aggregate.rule": "trimmed", "aggregate.trim": 0.3},
    "median": {"aggregate.rule": "median"},
}

Change = Callable[[State, State, np.random.Generator], State]


def _moved(before: State, after: State, factor: float) -> State:
    return {name: (before[name] + factor * (after[name] - before[name])).astype(after[name].dtype) for name in after}


def _noise(before: State, after: State, rng: np.random.Generator) -> State:
    """As long as an honest change, in a direction of its own."""
    noisy = {}
    for name, array in after.items():
        length = float(np.linalg.norm(array - before[name]))
        noise = rng.normal(size=array.shape)
        noisy[name] = (before[name] + noise * (10 * length / np.linalg.norm(noise))).astype(array.dtype)
    return noisy


CHANGES: dict[str, Change] = {
    "flipped signs": lambda before, after, rng: _moved(before, after, -1.0),
    "flipped, × 10": lambda before, after, rng: _moved(before, after, -10.0),
    "noise × 10": _noise,
    "counts × 1000, flipped": lambda before, after, rng: _moved(before, after, -1.0),
}
FLIPPED_LABELS = "flipped labels"
ATTACKS = ("none", *CHANGES, FLIPPED_LABELS)
_LIE = 1000


class PoisonedGrid(OneProcessGrid):
    """Sites in this process, of which the first `attackers` answer as the attack has it."""

    def __init__(self, attack: str, attackers: int, seed: int) -> None:
        super().__init__(client_app, SITES, threading.Event())
        self._attack, self._attackers = attack, attackers
        self._rng = np.random.default_rng(seed)

    def _answer(self, message: Message) -> Message:
        before = dict(wire.unpack_model(message.content)) if message.metadata.message_type == "train" else {}
        reply = super()._answer(message)
        site = self._contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if reply.has_error() or int(site) >= self._attackers:
            return reply
        if before and self._attack in CHANGES:
            after = dict(wire.unpack_model(reply.content))
            reply.content["model"] = wire.pack_arrays(CHANGES[self._attack](before, after, self._rng))
        if self._attack.startswith("counts"):
            _lie(reply)
        return reply


def _lie(reply: Message) -> None:
    for record, key in (("site", "train_samples"), ("training", "samples")):
        if record in reply.content:
            values = reply.content.config_records.get(record) or reply.content.metric_records[record]
            values[key] = int(values[key]) * _LIE  # type: ignore[arg-type, assignment]
            if record == "site":
                values["class_counts"] = [count * _LIE for count in values["class_counts"]]  # type: ignore[union-attr, assignment, list-item]


class _Last:
    def __init__(self) -> None:
        self.finished: RoundFinished | None = None

    def hear(self, event: Event) -> None:
        if isinstance(event, RoundFinished):
            self.finished = event


def honest_accuracy(attack: str, attackers: int, rule: Mapping[str, str | float], seed: int) -> float:
    """Share of the honest sites' test samples that the model of the last round gets right."""
    config: Config = parse({**BASE, **rule, "seed": seed, "data.classes": ",".join(str(c) for c in range(CLASSES))})
    poisoned = {f"{site:03d}" for site in range(attackers)} if attack == FLIPPED_LABELS else set()
    labels = SiteData.train_labels.func  # type: ignore[attr-defined]

    def flipped(site: SiteData) -> NDArray[np.int64]:
        return CLASSES - 1 - labels(site) if site.name in poisoned else labels(site)

    last = _Last()
    with mock.patch.object(SiteData, "train_labels", property(flipped)):
        conduct(PoisonedGrid(attack, attackers, seed), config, [last])
    assert last.finished is not None
    # The first three are left out of every cell, so that all cells speak of the same sites.
    honest = [metrics for name, metrics in last.finished.sites.items() if int(name) >= 3]
    samples = sum(metrics.count for metrics in honest)
    return sum(metrics.accuracy * metrics.count for metrics in honest) / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| attack | attackers | " + " | ".join(RULES) + " |\n|---|---:|" + "---:|" * len(RULES))
    for attack in ATTACKS:
        for attackers in (0,) if attack == "none" else (1, 2, 3):
            cells = [
                f"{statistics.mean(honest_accuracy(attack, attackers, rule, seed) for seed in seeds):.3f}"
                for rule in RULES.values()
            ]
            print(f"| {attack} | {attackers} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
