"""DC-CFL as a plain NumPy/PyTorch script, to measure Coterie against: `python -m benchmarks.plain_dc_cfl DIR`.

DIR is that of `benchmarks.dc_cfl`. No federation: the arrays of all sites lie in one process, and each cluster's
network is trained by itself, once for all thresholds at which the cluster occurs. Only how rows are read and dealt out
is Coterie's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from client.data.partition import partition
from client.data.split import split
from client.data.tables import read_table_samples
from common.config import PartitionSettings
from common.table import read_table

SITES, ANCHORS, EPOCHS, BATCH = 100, 1000, 50, 32
WIDTHS = ((64, 32), (32, 16))


def train(rows: np.ndarray, labels: np.ndarray, widths: tuple[int, int], classes: int) -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Linear(rows.shape[1], widths[0]), torch.nn.ReLU(),
        torch.nn.Linear(widths[0], widths[1]), torch.nn.ReLU(),
        torch.nn.Linear(widths[1], classes),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    x, y = torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


def hits(model: torch.nn.Module, rows: np.ndarray, labels: np.ndarray) -> int:
    with torch.no_grad():
        return int((model(torch.from_numpy(rows.astype(np.float32))).argmax(1).numpy() == labels).sum())


def main() -> None:
    start = time.process_time()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    folder = Path(sys.argv[1])
    table = read_table(str(folder / "schema.toml"))
    assert table is not None
    samples = read_table_samples(folder / "sites.csv", table, {name: i for i, name in enumerate(table.classes)})
    classes, m = len(table.classes), table.width
    shares = partition(samples.labels, None, SITES, PartitionSettings(scheme="classes", classes_per_site=2), 0)
    anchors = rng.multivariate_normal(np.zeros(m), np.array(table.correlations), ANCHORS, check_valid="ignore")
    seen, rows, labels, tests, held = [], [], [], [], []
    for share in shares:
        part = split(samples.labels[share], None, samples.splits[share], 0.2, rng.random(len(share)))
        train_rows, test_rows = (samples.rows[share[index]].astype(float) for index in part)
        mean = train_rows.mean(axis=0)
        f = np.linalg.svd(train_rows - mean)[2][: m - 1].T
        f = f @ np.linalg.qr(rng.normal(size=(m - 1, m - 1)))[0]

        def view(x: np.ndarray, mean: np.ndarray = mean, f: np.ndarray = f) -> np.ndarray:
            return np.hstack([(x - mean) @ f, np.ones((len(x), 1))])

        seen.append(view(anchors))
        rows.append(view(train_rows))
        labels.append(samples.labels[share[part[0]]])
        tests.append((view(test_rows), samples.labels[share[part[1]]]))
        held.append(rng.random(len(part[0])) < 0.2)
    shares_of_classes = np.stack([np.bincount(y, minlength=classes) / len(y) for y in labels])
    tree = linkage(pdist(shares_of_classes, "cityblock") / 2, "complete")
    inverses = [np.linalg.pinv(block) for block in seen]

    def integrate(members: tuple[int, ...]) -> list[np.ndarray]:
        u, s, _ = np.linalg.svd(np.hstack([seen[i] for i in members]), full_matrices=False)
        kept = min(m + 1, int((s >= 1e-2).sum()))
        size = s[:kept] * np.sqrt(ANCHORS / (s[:kept] ** 2).mean())
        return [inverses[i] @ (u[:, :kept] * size) for i in members]

    def clusters(threshold: float) -> list[tuple[int, ...]]:
        found = fcluster(tree, threshold, "distance")
        return [tuple(np.flatnonzero(found == label).tolist()) for label in np.unique(found)]

    known: dict[tuple[tuple[int, ...], tuple[int, int]], int] = {}
    scores: dict[tuple[float, tuple[int, int]], int] = {}
    for threshold in np.arange(1, 10) / 10:
        for members in clusters(threshold):
            if (members, WIDTHS[0]) in known:
                continue
            mappings = integrate(members)
            x = np.concatenate([rows[i] @ g for i, g in zip(members, mappings, strict=True)])
            y = np.concatenate([labels[i] for i in members])
            out = np.concatenate([held[i] for i in members])
            for widths in WIDTHS:
                known[members, widths] = hits(train(x[~out], y[~out], widths, classes), x[out], y[out])
        for widths in WIDTHS:
            scores[float(threshold), widths] = sum(known[members, widths] for members in clusters(threshold))
    best, widths = max(scores, key=lambda candidate: scores[candidate])
    accuracy = {}
    for members in clusters(best):
        mappings = integrate(members)
        x = np.concatenate([rows[i] @ g for i, g in zip(members, mappings, strict=True)])
        model = train(x, np.concatenate([labels[i] for i in members]), widths, classes)
        for i, g in zip(members, mappings, strict=True):
            accuracy[i] = hits(model, tests[i][0] @ g, tests[i][1]) / len(tests[i][1])
    print(f"{time.process_time() - start:.1f} {np.mean(list(accuracy.values())):.4f} {best}")


if __name__ == "__main__":
    main()
