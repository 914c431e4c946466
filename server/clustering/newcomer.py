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
# Of members: how often the newcomer would differ as much from them if it drew from their data, a p-value.
ChanceAmong = Callable[[NDArray[np.int64]], float]

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
    chance: ChanceAmong,
    rng: np.random.Generator,
) -> Place:
    """Place a newcomer of `size` samples among labelled members of `sizes`; `distance` compares signatures.

    It fits if it differs from the group no more than chance gives, or is no farther from it than its own members are
    from each other.
    """
    chosen = _sample(labels)
    kept, groups = [members[i] for i in chosen], labels[chosen]
    described = [*(sizes[i] for i in chosen), size]
    matrix = distance([*kept, newcomer], described)
    to_groups = _means(matrix[-1:, :-1], groups)[0]
    names = np.unique(groups)
    nearest = int(to_groups.argmin())
    own = groups == names[nearest]
    fits = to_groups[nearest] <= _widest(matrix[:-1, :-1][np.ix_(own, own)])
    if not fits:
        fits = chance(np.flatnonzero(labels == names[nearest])) >= LEVEL
    if len(names) == 1:
        return Place(int(names[0]), 1.0, bool(fits))
    trace = within_trace([*members, newcomer], [*sizes, size])
    # One at a time: many near each other would change what is far for those without a common class.
    redraws = [distance([*kept, redrawn(newcomer, size, trace, rng)], described)[-1:, :-1] for _ in range(DRAWS)]
    confidence = float((_means(np.vstack(redraws), groups).argmin(axis=1) == nearest).mean())
    return Place(int(names[nearest]), confidence, bool(fits))


def redrawn(source: Signature, size: int, trace: float, rng: np.random.Generator) -> Signature:
    """The signature of `size` samples drawn from what `source` describes.

    `trace` is that of the covariance within classes.
    """
    counts = rng.multinomial(size, source.shares / source.shares.sum())
    present = np.flatnonzero(counts)
    spread = np.sqrt(trace / counts[present] / source.dimension)
    noise = spread[:, None] * rng.normal(size=(len(present), source.dimension))
    prototypes = (source.prototypes[present] + noise).astype(np.float32)
    scatter = trace * (1 - 1 / counts[present])
    return Signature(source.classes[present], prototypes, counts[present] / size, scatter)


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
