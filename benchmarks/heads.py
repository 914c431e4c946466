"""CPU seconds of a round with heads beside a plain PyTorch loop over the sites: `python -m benchmarks.heads`.

FedAvg with a linear head on invented embeddings of 1,200 numbers, as many samples at every site, one process, one
thread. Ours is `coterie simulate` with everything it does in a round: messages, screening, sums in any order, tests
with all their figures, the run directory. The plain loop has none of that: it trains, averages and counts hits.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# Before NumPy and torch are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cli.simulation.engine import simulate
from cli.simulation.preflight import prepare
from client.data import SiteData
from client.head_training import centred
from client.identity import Identity
from client.request import data_of
from client.training import batches
from common import wire
from common.config import Config, parse
from common.models import EMBEDDING_LENGTH
from common.prior import class_shares
from common.randomness import derive_seed

CLASSES, SIDE = 10, 20
_SITE_ROUNDS = 3000  # that are measured


def invent(path: Path, count: int) -> None:
    """Write grey images of 20 pixels: a picture for each class, and noise."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (CLASSES, SIDE, SIDE))
    labels = rng.integers(0, CLASSES, count)
    noise = rng.integers(-64, 65, (count, SIDE, SIDE), dtype=np.int16)
    images = np.clip(pictures[labels] // 2 + 64 + noise, 0, 255).astype(np.uint8)
    np.savez(path, x=images, y=labels)


def config_of(folder: Path, sites: int, rounds: int) -> Config:
    return parse(
        {
            "method": "fedavg", "sites": sites, "rounds": rounds, "checkpoint": 0, "cache": str(folder / "cache"),
            "out": str(folder / f"run-{sites}-{rounds}"), "partition.scheme": "iid", "data.source": "npz",
            "data.path": str(folder / f"{sites}.npz"), "data.classes": ",".join(map(str, range(CLASSES))),
            "data.image_size": 8, "data.channels": 1, "train.model": "head", "encoder.name": "pixels",
            "encoder.image_size": SIDE,
        }
    )  # fmt: skip


def ours(folder: Path, sites: int) -> float:
    """CPU seconds of one more round: the difference between a longer run and a shorter one, after one that warms up."""
    more = max(_SITE_ROUNDS // sites, 3)
    spent = []
    for number, rounds in enumerate((1, 1, 1 + more)):
        config = prepare(config_of(folder, sites, rounds))
        config = config.model_copy(update={"out": f"{config.out}-{number}"})
        start = time.process_time()
        if (outcome := simulate(config, jobs=1)) != "finished":
            raise SystemExit(f"the run {outcome}")
        spent.append(time.process_time() - start)
    return (spent[2] - spent[1]) / more


class PlainSite:
    """What the loop needs of a site, made before the clock starts."""

    def __init__(self, site: SiteData, centre: np.ndarray) -> None:
        self.name = site.name
        self.train, self.test = (
            torch.from_numpy(centred(rows, centre, EMBEDDING_LENGTH))
            for rows in (site.train_inputs(), site.test_inputs())
        )
        self.train_labels, self.test_labels = map(torch.from_numpy, (site.train_labels, site.test_labels))
        self.prior = torch.from_numpy(np.log(class_shares(site.class_counts))).float()


def train(model: nn.Linear, site: PlainSite, config: Config, round_number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.lr, foreach=True)
    seed = derive_seed(config.seed, "training", site.name, round_number)
    for batch in batches(len(site.train), config.train.batch_size, np.random.default_rng((seed, 0))):
        chosen = torch.from_numpy(batch)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(site.train[chosen]) + site.prior, site.train_labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.inference_mode()
def hits(model: nn.Linear, site: PlainSite) -> int:
    return int(((model(site.test) + site.prior).argmax(1) == site.test_labels).sum())


def plain(folder: Path, sites: int) -> float:
    """CPU seconds of a round of the loop."""
    torch.set_num_threads(1)
    config = prepare(config_of(folder, sites, max(_SITE_ROUNDS // sites, 3)))
    task = wire.Task(config.for_site(), 1, config.rounds)
    loaded = [data_of(Identity(f"{index:03d}", None, (index, sites), None), task, 1) for index in range(sites)]
    centre = np.mean([site.train_inputs().mean(axis=0) for site in loaded], axis=0)
    members = [PlainSite(site, centre) for site in loaded]
    model = nn.Linear(len(centre), CLASSES)
    common: dict[str, Tensor] = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    total = sum(len(site.train) for site in members)
    start = time.process_time()
    for round_number in range(1, config.rounds + 1):
        mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in common.items()}
        for site in members:
            model.load_state_dict(common)
            train(model, site, config, round_number)
            for name, tensor in model.state_dict().items():
                mean[name] += tensor.double() * (len(site.train) / total)
        common = {name: mean[name].to(tensor.dtype) for name, tensor in common.items()}
        model.load_state_dict(common)
        sum(hits(model, site) for site in members)
    return (time.process_time() - start) / config.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[30, 1000])
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 400], help="per site")
    options = parser.parse_args()
    logging.disable()
    print("| sites | samples each | ours, ms per site and round | plain loop | ratio |\n|---:|---:|---:|---:|---:|")
    for samples in options.samples:
        for sites in options.sites:
            with TemporaryDirectory() as name:
                folder = Path(name)
                invent(folder / f"{sites}.npz", sites * samples)
                mine, theirs = (1000 * spend(folder, sites) / sites for spend in (ours, plain))
            print(f"| {sites:,} | {samples} | {mine:.2f} | {theirs:.2f} | {mine / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
