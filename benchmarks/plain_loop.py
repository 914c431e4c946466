"""FedAvg as a plain PyTorch loop, without Flower: `python -m benchmarks.plain_loop CONFIG.toml`.

The same sites, network, batches, optimiser and test parts as `coterie simulate`, one site after the other, one thread;
none of its screening, order-independent sums, metrics and files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from client.data import SiteData, load_site
from client.identity import Identity
from client.training import batches
from common.config import Config, load
from common.models import build
from common.randomness import derive_seed


def pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.copy()).permute(0, 3, 1, 2).float() / 127.5 - 1


def train(model: torch.nn.Module, site: SiteData, config: Config, round_number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.lr, foreach=True)
    images, labels = pixels(site.train_images()), torch.from_numpy(site.train_labels)
    seed = derive_seed(config.seed, "training", site.name, round_number)
    model.train()
    for batch in batches(len(labels), config.train.batch_size, np.random.default_rng((seed, 0))):
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            model(images[batch].contiguous(memory_format=torch.channels_last)), labels[batch]
        )
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def hits(model: torch.nn.Module, site: SiteData) -> int:
    model.eval()
    return int((model(pixels(site.test_images())).argmax(1) == torch.from_numpy(site.test_labels)).sum())


def main(path: Path) -> None:
    torch.set_num_threads(1)
    config = load(path)
    sites = [
        load_site(Identity(f"{index:03d}", None, (index, config.sites), None), config.for_site())
        for index in range(config.sites)
    ]
    model = build(
        config.train.model,
        classes=len(sites[0].classes),
        channels=config.data.channels,
        image_size=config.data.image_size,
        seed=config.seed,
    ).to(memory_format=torch.channels_last)
    common = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    total = sum(len(site.train) for site in sites)
    for round_number in range(1, config.rounds + 1):
        mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in common.items()}
        for site in sites:
            model.load_state_dict(common)
            train(model, site, config, round_number)
            for name, tensor in model.state_dict().items():
                mean[name] += tensor.double() * (len(site.train) / total)
        common = {name: mean[name].to(tensor.dtype) for name, tensor in common.items()}
        model.load_state_dict(common)
        accuracy = sum(hits(model, site) for site in sites) / sum(len(site.test) for site in sites)
        print(f"round {round_number}: accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
