"""What an encoder is worth on a data set: how it groups sites, how FMCL does on it, and what an embedding costs.

Run with `python -m benchmarks.encoders configs/busi.toml --set data.path=/where/BUSI/is`. Each run trains heads on the
encoder, by the paper's rule for the number of groups and by the default one. The adjusted Rand index holds the groups
of the paper's rule against the class that a site has most of: 1 is the same, 0 is chance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from cli.api import Run, simulate
from client.encoder import load_encoder
from common.config import EncoderSettings, FlatValue, parse_override
from server.clustering import adjusted_rand_index

ENCODERS = ("efficientnet_lite0", "efficientnet_lite2")
HEADS: Mapping[str, FlatValue] = {"method": "fmcl", "train.model": "head", "train.lr": 0.01, "rounds": 20}
TIMED = 64


def milliseconds(name: str, side: int) -> tuple[int, float]:
    """The side in pixels that an encoder looks at, and what an image takes it."""
    encoder = load_encoder(EncoderSettings(name=name, image_size=side), 0)
    images = np.random.default_rng(0).integers(0, 256, (TIMED, encoder.size, encoder.size, 3), np.uint8)
    encoder.embed(images[:16])
    began = time.perf_counter()
    encoder.embed(images)
    return encoder.size, 1000 * (time.perf_counter() - began) / TIMED


def agreement(run: Run) -> float:
    """How well the groups are those of the sites' main classes."""
    labels = run.record.labels
    sites = sorted(labels)
    main = [int(np.argmax(run.record.cards[site].class_counts)) for site in sites]
    return adjusted_rand_index([labels[site] for site in sites], main)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over the seeds."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def main(arguments: Sequence[str]) -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--set", dest="changes", action="append", default=[], type=parse_override)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--px", type=int, nargs="+", default=[128, 0], help="sides of the images; 0: the encoder's own")
    options = parser.parse_args(arguments)
    head = (
        "encoder",
        "px",
        "ms an image",
        "K, paper's rule",
        "ARI, main classes",
        "accuracy, %",
        "K, default",
        "accuracy, %",
    )
    print(f"| {' | '.join(head)} |", "|---|---:|---:|---:|---:|---:|---:|---:|", sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="coterie-encoders-") as folder:
        for side, name in product(options.px, ENCODERS):
            found: dict[str, list[Run]] = {"published": [], "guarded": []}
            for seed in range(options.seeds):
                for rule, runs in found.items():
                    changes = dict(HEADS) | dict(options.changes)
                    changes |= {"encoder.name": name, "encoder.image_size": side, "seed": seed, "cluster.rule": rule}
                    changes["cache"] = f"{folder}/cache"
                    out = Path(folder, f"{name}-{side}-{seed}-{rule}")
                    runs.append(simulate(options.config, changes, out=out, jobs=1))
            pixels, cost = milliseconds(name, side)
            cells = [name, str(pixels), f"{cost:.0f}"]
            for rule, runs in found.items():
                cells.append(spread([len(set(run.record.labels.values())) for run in runs]))
                if rule == "published":
                    cells.append(spread([agreement(run) for run in runs], 2))
                best = [max(each.overall.accuracy for each in run.record.rounds) for run in runs]
                cells.append(spread([100 * accuracy for accuracy in best]))
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
