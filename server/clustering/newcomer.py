"""Where a newcomer belongs, how sure that is, and whether it fits there at all: against the noise of its own sampling.

A signature is made from the samples that a site happens to have. Redraws stand for others that it might have had: class
counts drawn from its shares, class means off by what the scatter within the class gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature

# Of signatures, and the samples that each describes.
Distance = Callable[[Sequence[Signature], Sequence[int]], NDArray[np.float64]]

DRAWS = 50
# Members that a newcomer is compared with, evenly from all groups; more would only cost time.
MOST_MEMBERS = 100
# A site that draws from a group's data is told that it fits nowhere in so many cases.
LEVEL = 0.05


@dataclass(frozen=True)
class Place:
    """The nearest group, the share of redraws for which it is that, and whether the site fits there."""

    group: int
    confidence: float
    fits: bool


def find_place(
    newcomer: Signature,
    size: int,
    members: Sequence[Signature],
    sizes: Sequence[int],
    labels: NDArray[np.int64],
    distance: Distance,
    rng: np.random.Generator,
) -> Place:
    """Place a newcomer of `size` samples among labelled members of `sizes`; `distance` compares signatures.

    It fits if it is no farther from the group than sites of its size that draw from the group's data are, or than the
    group's own members are from each other.
    """
    chosen = _sample(labels)
    kept, groups = [members[i] for i in chosen], labels[chosen]
    described = [sizes[i] for i in chosen]
    trace = within_trace([*members, newcomer], [*sizes, size])
    certain = np.full(len(newcomer.classes), np.inf)
    redraws = [redrawn(newcomer, certain, size, trace, rng) for _ in range(DRAWS)]
    matrix = distance([*kept, newcomer, *redraws], [*described, *[size] * (DRAWS + 1)])
    to_groups = _means(matrix[len(kept) :, : len(kept)], groups)
    names = np.unique(groups)
    nearest = int(to_groups[0].argmin())
    confidence = float((to_groups[1:].argmin(axis=1) == nearest).mean()) if len(names) > 1 else 1.0
    own = groups == names[nearest]
    inside = chosen[own]
    typical, known = pooled([members[i] for i in inside], [sizes[i] for i in inside])
    alike = [redrawn(typical, known, size, trace, rng) for _ in range(DRAWS)]
    # Among all, so that sites without a common class are as far apart here as there.
    beside = distance([*kept, *alike], [*described, *[size] * DRAWS])[len(kept) :, : len(kept)][:, own].mean(axis=1)
    reach = max(float(np.quantile(beside, 1 - LEVEL)), _widest(matrix[: len(kept), : len(kept)][np.ix_(own, own)]))
    return Place(int(names[nearest]), confidence, bool(to_groups[0, nearest] <= reach))


def redrawn(
    source: Signature, known: NDArray[np.float64], size: int, trace: float, rng: np.random.Generator
) -> Signature:
    """The signature of `size` samples drawn from what `source` describes.

    Its own class means are known from `known` samples, infinitely many if they are the truth: they are off by chance,
    too. `trace` is that of the covariance within classes.
    """
    counts = rng.multinomial(size, source.shares / source.shares.sum())
    present = np.flatnonzero(counts)
    spread = np.sqrt(trace * (1 / counts[present] + 1 / known[present]) / source.dimension)
    noise = spread[:, None] * rng.normal(size=(len(present), source.dimension))
    prototypes = (source.prototypes[present] + noise).astype(np.float32)
    scatter = trace * (1 - 1 / counts[present])
    return Signature(source.classes[present], prototypes, counts[present] / size, scatter)


def pooled(signatures: Sequence[Signature], sizes: Sequence[int]) -> tuple[Signature, NDArray[np.float64]]:
    """What a group's members have in common, and from how many samples the mean of each class is known."""
    width = max(int(signature.classes[-1]) for signature in signatures) + 1
    shares, samples = np.zeros(width), np.zeros(width)
    sums = np.zeros((width, signatures[0].dimension))
    for signature, size in zip(signatures, sizes, strict=True):
        own = signature.shares * size
        shares[signature.classes] += signature.shares / len(signatures)
        samples[signature.classes] += own
        sums[signature.classes] += own[:, None] * signature.prototypes
    present = np.flatnonzero(samples)
    means = (sums[present] / samples[present, None]).astype(np.float32)
    return Signature(present, means, shares[present] / shares.sum()), samples[present]


def within_trace(signatures: Sequence[Signature], sizes: Sequence[int]) -> float:
    """Trace of the covariance within classes, over all of them; 0 where nobody has two samples of a class."""
    squares = sum(float(one.shares @ one.scatter) * size for one, size in zip(signatures, sizes, strict=True))
    free = sum(size - len(one.classes) for one, size in zip(signatures, sizes, strict=True))
    return squares / free if free > 0 else 0.0


def _sample(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Members of every group, evenly over its order: as many as there is room for, at least one."""
    groups = np.unique(labels)
    room = max(MOST_MEMBERS // len(groups), 1)
    picked = []
    for group in groups:
        own = np.flatnonzero(labels == group)
        picked.append(own[np.linspace(0, len(own) - 1, min(room, len(own))).astype(np.int64)])
    return np.sort(np.concatenate(picked))


def _means(distance: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean distance of each row to each group, float64[rows, K]."""
    return np.stack([distance[:, groups == group].mean(axis=1) for group in np.unique(groups)], axis=1)


def _widest(distance: NDArray[np.float64]) -> float:
    """The largest mean distance of a member to the others; 0 where there are no others."""
    return float(distance.sum(axis=1).max()) / (len(distance) - 1) if len(distance) > 1 else 0.0
