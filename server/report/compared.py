"""Which sites a page compares: all of them or, of very many, some drawn by lot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.randomness import generator
from server.clustering.chance import Chance

# Of a comparison of every two sites the work and the memory grow with the square of their number, and some of the work
# with its cube.
MOST_COMPARED = 2000
# Of every group so many come first, so that a small one is there, too.
_OF_EACH = 2


@dataclass(frozen=True)
class Grouping:
    """How the sites were grouped before the first round. `labels[i]` is the group of `sites[i]`."""

    sites: tuple[str, ...]
    labels: NDArray[np.int64]
    window: tuple[int, ...]
    cv: float | None
    chance: Chance | None = None


def drawn(grouping: Grouping, seed: int, most: int = MOST_COMPARED) -> NDArray[np.int64]:
    """Places of the sites that are compared, increasing: all, or `most`, of every group two if there is room."""
    count = len(grouping.sites)
    if count <= most:
        return np.arange(count)
    order = generator(seed, "compared").permutation(count)
    labels = grouping.labels[order]
    # How many of its group stand before each in the order drawn.
    by_group = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_group], labels[by_group])
    before = np.empty(count, np.int64)
    before[by_group] = np.arange(count) - starts
    first = np.argsort(before >= _OF_EACH, kind="stable")
    places: NDArray[np.int64] = np.sort(order[first[:most]])
    return places


def part_of(grouping: Grouping, places: NDArray[np.int64]) -> Grouping:
    """The grouping of some of its sites."""
    if len(places) == len(grouping.sites):
        return grouping
    sites = tuple(grouping.sites[place] for place in places)
    return Grouping(sites, grouping.labels[places], grouping.window, grouping.cv, grouping.chance)
