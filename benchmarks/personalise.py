"""The last step at a site: `python -m benchmarks.personalise [--seeds 0 1 2] [--networks head lenet5] [--prior site]`.

Digits dealt out to 20 sites with strong, mild and no label skew. For each the group's model, every last step and Local:
accuracy and log loss over all sites' test samples, and how many sites are worse off than in Local by more than noise
(fewer test samples right, Fisher's exact test, one-sided, 5 %). What the rules of `client/personal` were decided on.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.stats import fisher_exact

from cli.simulation.one_process import OneProcessGrid
from client.app import app
from common.config import Config, load
from common.metrics import Metrics
from server.app import conduct
from server.history.events import Event, RoundFinished, SitesPersonalised

CONFIG = Path("configs/demo.toml")
WORLDS: dict[str, dict[str, object]] = {
    "Dirichlet 0.1": {"partition.alpha": 0.1},
    "Dirichlet 0.5": {"partition.alpha": 0.5},
    "IID": {"partition.scheme": "iid"},
}
NETWORKS: dict[str, dict[str, object]] = {
    "head": {"train.model": "head", "train.lr": 0.01, "train.batch_size": 32, "rounds": 20},
    "lenet5": {"train.model": "lenet5", "rounds": 15},
}
# The demo rehearses its groups, which Local cannot; here the silhouette decides.
PLAIN: dict[str, object] = {"cluster.choice": "silhouette"}
STEPS = ("none", "finetune", "select", "blend")
NOISE = 0.05


@dataclass
class Last:
    """Hears what the sites' final models do."""

    overall: Metrics | None = None
    sites: dict[str, Metrics] | None = None

    def hear(self, event: Event) -> None:
        if isinstance(event, RoundFinished | SitesPersonalised):
            self.overall, self.sites = event.overall, event.sites


def outcome(config: Config) -> Last:
    last = Last()
    conduct(OneProcessGrid(app, config.sites, threading.Event()), config, [last])
    return last


def worse_off(ours: dict[str, Metrics], local: dict[str, Metrics]) -> int:
    """Sites with fewer test samples right than in Local, by more than noise."""
    count = 0
    for name in ours.keys() & local.keys():
        right, alone = (round(m.accuracy * m.count) for m in (ours[name], local[name]))
        table = [[right, ours[name].count - right], [alone, local[name].count - alone]]
        count += bool(fisher_exact(table, alternative="less").pvalue < NOISE)
    return count


def measure(network: str, world: str, prior: str, methods: list[str], seeds: list[int], cache: str) -> list[str]:
    """The rows of one table."""
    found: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for seed in seeds:
        common = {**NETWORKS[network], **WORLDS[world], **PLAIN, "train.prior": prior, "seed": seed, "cache": cache}
        local = outcome(load(CONFIG, {**common, "method": "local"}))
        assert local.sites is not None
        for method, step in [("local", "none"), *((method, step) for method in methods for step in STEPS)]:
            last = outcome(load(CONFIG, {**common, "method": method, "personalise": step}))
            assert last.overall is not None
            assert last.sites is not None
            label = method if step == "none" else f"{method} + {step}"
            found[label].append((100 * last.overall.accuracy, last.overall.loss, worse_off(last.sites, local.sites)))
    rows = []
    for label, runs in found.items():
        accuracy, loss, worse = np.mean(runs, axis=0)
        spread = f" ± {np.std([run[0] for run in runs], ddof=1):.1f}" if len(runs) > 1 else ""
        rows.append(f"| {network}, {world} | {label} | {accuracy:.1f}{spread} | {loss:.3f} | {worse:.2g} of 20 |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fmcl"])
    parser.add_argument("--prior", choices=("site", "off"), default="site")
    parser.add_argument("--cache", default="", help="folder for embeddings; default: one for this time only")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| | | accuracy, % | log loss | worse off than alone |\n|---|---|---:|---:|---:|", flush=True)
    with TemporaryDirectory() as folder:
        for network in options.networks:
            for world in options.worlds:
                for row in measure(
                    network, world, options.prior, options.methods, options.seeds, options.cache or folder
                ):
                    print(row, flush=True)


if __name__ == "__main__":
    main()
