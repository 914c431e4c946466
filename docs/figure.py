"""Draw the README's picture from the run directories of `coterie demo`: `python docs/figure.py RUNS PICTURE.png`."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

TITLES = {"fmcl": "FMCL", "fedavg": "FedAvg", "local": "Local"}
MARKERS = {"fmcl": "o", "fedavg": "s", "local": "^"}


def main(runs: Path, picture: Path) -> None:
    """Left: what each site holds, in the order of its group. Middle: distances. Right: accuracy over the rounds."""
    clusters = json.loads((runs / "fmcl" / "clusters.json").read_text(encoding="utf-8"))
    sites = clusters["sites"]
    order = sorted(sites, key=lambda name: (sites[name]["group"], name))
    groups = np.array([sites[name]["group"] for name in order])
    borders = np.flatnonzero(np.diff(groups)) + 0.5
    figure, (mix, heat, curves) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")

    counts = np.array([sites[name]["class_counts"] for name in order], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    left = np.zeros(len(order))
    colours = plt.get_cmap("tab10")
    for label in range(shares.shape[1]):
        mix.barh(range(len(order)), shares[:, label], left=left, color=colours(label), label=str(label))
        left += shares[:, label]
    mix.set(title="what each site holds (share per digit)", yticks=range(len(order)), yticklabels=order, xlim=(0, 1))
    mix.set_ylabel("site, ordered by group")
    mix.invert_yaxis()
    mix.legend(
        ncols=10, loc="upper center", bbox_to_anchor=(0.5, -0.06), fontsize=7, handlelength=0.8, columnspacing=0.8
    )

    index = [clusters["distance_order"].index(name) for name in order]
    distance = np.load(runs / "fmcl" / "distances.npy")[np.ix_(index, index)]
    image = heat.imshow(distance, cmap="viridis_r")
    heat.set(title=f"distance of signatures, K = {clusters['k']} chosen", xticks=[], yticks=[])
    for border in borders:
        heat.axhline(border, color="red", lw=1)
        heat.axvline(border, color="red", lw=1)
        mix.axhline(border, color="red", lw=1)
    figure.colorbar(image, ax=heat, shrink=0.8)

    for method, title in TITLES.items():
        with (runs / method / "metrics.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["scope"] == "overall"]
        accuracy = [float(row["mean_site_accuracy"]) for row in rows]
        curves.plot([int(row["round"]) for row in rows], accuracy, marker=MARKERS[method], ms=4, label=title)
    curves.set(title="accuracy on the sites' own test data", xlabel="round", ylabel="mean over the sites", ylim=(0, 1))
    curves.grid(alpha=0.3)
    curves.legend()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
