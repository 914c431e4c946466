"""Cost of grouping N sites beside the matrix products it cannot do without: `python -m benchmarks.clustering`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature
from server.clustering import merge_tree, overlap_distance, select_k

DIMENSION = 768
CLASSES = 10
NAIVE_LIMIT = 300


def make_signatures(sites: int, seed: int = 0) -> list[Signature]:
    """Sites with 3 to 10 of 10 classes, Dirichlet shares, prototypes scattered round a centre per class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, DIMENSION))
    signatures = []
    for _ in range(sites):
        classes = np.sort(rng.choice(CLASSES, size=rng.integers(3, CLASSES + 1), replace=False)).astype(np.int64)
        counts = 1 + rng.multinomial(500, rng.dirichlet(np.ones(len(classes))))
        prototypes = (centres[classes] + rng.normal(size=(len(classes), DIMENSION))).astype(np.float32)
        signatures.append(Signature(classes, prototypes, counts / counts.sum()))
    return signatures


def stack_by_class(signatures: Sequence[Signature]) -> list[NDArray[np.float64]]:
    """The prototypes of each class as one float64 matrix, ready for the bare products."""
    class_of = np.concatenate([signature.classes for signature in signatures])
    prototype_of = np.concatenate([signature.prototypes for signature in signatures])
    return [prototype_of[class_of == label].astype(np.float64) for label in range(CLASSES)]


def bare_products(stacks: Sequence[NDArray[np.float64]]) -> None:
    """The floor: every inner product of two prototypes of a class. NumPy computes A @ A.T as half a product."""
    for stack in stacks:
        stack @ stack.T


def naive_distance(signatures: Sequence[Signature], epsilon: float = 1e-3, beta: float = 100.0) -> NDArray[np.float64]:
    """The double loop over pairs that one would write first; pairs without a shared class are left at 0."""
    distance = np.zeros((len(signatures), len(signatures)))
    for i, a in enumerate(signatures):
        for j in range(i + 1, len(signatures)):
            b = signatures[j]
            _, p, q = np.intersect1d(a.classes, b.classes, assume_unique=True, return_indices=True)
            mu_a, mu_b = a.prototypes[p].astype(np.float64), b.prototypes[q].astype(np.float64)
            shared = np.minimum(a.shares[p], b.shares[q])
            norms = np.linalg.norm(mu_a, axis=1) * np.linalg.norm(mu_b, axis=1)
            cosine = (mu_a * mu_b).sum(axis=1) / (norms + epsilon)
            omega = shared.sum()
            multiplier = min(1 / max(omega, epsilon), beta)
            distance[i, j] = distance[j, i] = shared @ (1 - cosine) / (omega + epsilon) * multiplier
    return distance


def measure(sites: int, repeats: int) -> list[str]:
    """One row of the table; every time is the best of `repeats`, taken in turn so that all see the same machine."""
    signatures = make_signatures(sites)
    stacks = stack_by_class(signatures)
    distance = overlap_distance(signatures)
    tasks: dict[str, Callable[[], object]] = {
        "bare": lambda: bare_products(stacks),
        "distance": lambda: overlap_distance(signatures),
        "linkage": lambda: merge_tree(distance),
        "select": lambda: select_k(distance),
    }
    if sites <= NAIVE_LIMIT:
        tasks["naive"] = lambda: naive_distance(signatures)
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repeats):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - begin)
    total = best["distance"] + best["select"]
    seconds = [best["distance"], best["linkage"], best["select"], total, best["bare"]]
    naive = [f"{best['naive']:.3f}", f"{best['naive'] / best['distance']:.0f}x"] if "naive" in best else ["", ""]
    ratios = [f"{best['distance'] / best['bare']:.2f}x", f"{total / best['bare']:.2f}x"]
    return [str(sites), *(f"{value:.4f}" for value in seconds), *ratios, *naive]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 300, 1000, 5000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"Seconds, best of {arguments.repeats}; d = {DIMENSION}, {CLASSES} classes; linkage is part of select_k.\n")
    columns = ["N", "distance", "linkage", "select_k", "total", "bare products", "distance / bare", "total / bare"]
    columns += ["double loop", "double loop / distance"]
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---:|' * len(columns)}")
    for sites in arguments.sites:
        print(f"| {' | '.join(measure(sites, arguments.repeats))} |", flush=True)


if __name__ == "__main__":
    main()
