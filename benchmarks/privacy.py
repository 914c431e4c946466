"""What a privacy budget costs, in accuracy and in grouping: `python -m benchmarks.privacy [--busi FOLDER]`.

Twenty sites, a head on the frozen encoder, 20 rounds of one step. Accuracy is that of the sites' exact test statistics,
which in such a run nobody but this benchmark sees. Sites are grouped by FMCL in two worlds with three kinds of sites.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import threading
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from client.privacy.private import Private
from common.config import Config, parse
from common.metrics import EvaluationStatistics
from server.app import conduct
from server.history.events import Event, GroupsFormed, RoundFinished
from server.history.truth import agreement_with_truth

SITES, ROUNDS = 20, 20
BASE = {
    "sites": SITES, "rounds": ROUNDS, "test.every": ROUNDS, "checkpoint": 0,
    "train.model": "head", "train.lr": 0.01, "train.batch_size": 16, "cluster.choice": "silhouette",
}  # fmt: skip
DIGITS = {
    "data.image_size": 16, "data.channels": 1, "encoder.image_size": 64,
    "data.classes": ",".join(str(digit) for digit in range(10)),
}  # fmt: skip
BUSI = {
    "data.source": "folder", "data.classes": "benign,malignant,normal", "data.image_size": 64, "data.channels": 1,
    "encoder.image_size": 128,
}  # fmt: skip
WORLDS: dict[str, dict[str, str | float]] = {
    "one model": {"method": "fedavg", "partition.alpha": 0.5},
    "concept": {"method": "fmcl", "partition.scheme": "iid", "partition.shift": "concept"},
    "devices": {"method": "fmcl", "partition.scheme": "iid", "partition.shift": "devices"},
}
# Embeddings of 64 numbers need less noise; the first two rows say what that alone costs.
ROWS: dict[str, dict[str, str | float]] = {
    "none": {},
    "none, 64 numbers": {"encoder.dimensions": 64},
    **{f"{epsilon:g}": {"privacy.epsilon": epsilon, "encoder.dimensions": 64} for epsilon in (30.0, 8.0, 3.0, 1.0)},
}


@dataclass
class Found:
    """What came of a run, as it tells and as it is."""

    config: Config
    right: int = 0
    samples: int = 0
    groups: int = 1
    agreement: float = 1.0
    _exact: dict[str, EvaluationStatistics] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Note how sites were grouped, and how their models do."""
        if isinstance(event, GroupsFormed):
            self.groups = len(set(event.labels))
            labels = dict(zip(event.sites, event.labels, strict=True))
            found = agreement_with_truth(self.config, labels)
            self.agreement = 1.0 if found is None else found
        elif isinstance(event, RoundFinished):
            self.samples = sum(metrics.count for metrics in event.sites.values())
            self.right = sum(round(metrics.accuracy * metrics.count) for metrics in event.sites.values())

    def look(self, site: str, exact: EvaluationStatistics) -> None:
        """Note what a site with a budget found and did not tell."""
        self._exact[site] = exact

    @property
    def accuracy(self) -> float:
        """Of all test samples."""
        if not self._exact:
            return self.right / self.samples
        total = sum(one.confusion for one in self._exact.values())
        return float(np.trace(total) / np.sum(total))


def run(settings: dict[str, str | float], seed: int) -> Found:
    """One run; a site's own test is looked at before it gets its noise."""
    config = parse({**BASE, **settings, "seed": seed})
    found, told = Found(config), Private.statistics

    def watched(site: Private, exact: EvaluationStatistics) -> EvaluationStatistics:
        found.look(site.name, exact)
        return told(site, exact)

    with mock.patch.object(Private, "statistics", watched):
        conduct(OneProcessGrid(client_app, SITES, threading.Event()), config, [found])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--busi", help="folder of BUSI, one sub-folder per class; without it digits are measured")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("coterie").setLevel(logging.ERROR)
    data = {**BUSI, "data.path": options.busi} if options.busi else DIGITS
    print("| ε | one model | concept: accuracy | K | ARI | devices: accuracy | K | ARI |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, changes in ROWS.items():
        cells = []
        for world, settings in WORLDS.items():
            runs = [run({**data, **settings, **changes}, seed) for seed in range(options.seeds)]
            cells.append(f"{statistics.mean(one.accuracy for one in runs):.3f}")
            if world != "one model":
                cells.append(", ".join(str(one.groups) for one in runs))
                cells.append(f"{statistics.mean(one.agreement for one in runs):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
