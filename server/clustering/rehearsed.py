"""How many groups, by what they bring: the least loss of a rehearsal, and fewer where more are not clearly better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer groups are given up for more only if they are worse in so many of the draws.
CLEARLY = 0.95
_DRAWS = 1000


@dataclass(frozen=True)
class Rehearsed:
    """What every number of groups would bring.

    Attributes
    ----------
    ks
        Numbers of groups, increasing; the last is one group for each site.
    losses
        Mean log loss of a held-out sample at each.
    low, high
        The loss beyond that of one group: 2.5 and 97.5 % of the draws of sites.
    k
        The fewest groups that are not clearly worse than the best number.
    """

    ks: tuple[int, ...]
    losses: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    k: int


def fewest_as_good(
    ks: Sequence[int], losses: NDArray[np.float64], samples: NDArray[np.int64], rng: np.random.Generator
) -> Rehearsed:
    """Choose from float64[N, K], the summed losses of N sites at each of K increasing numbers of groups.

    `samples` int64[N] are those that the sums are over. A paired bootstrap: whole sites are drawn, with all their
    losses, so that what makes a site hard for every grouping drops out of the differences.
    """
    means = losses.sum(axis=0) / samples.sum()
    drawn = rng.multinomial(len(samples), np.full(len(samples), 1 / len(samples)), _DRAWS)
    draws = (drawn @ losses) / (drawn @ samples)[:, None]
    best = int(means.argmin())
    beaten = (draws > draws[:, [best]]).mean(axis=0) >= CLEARLY
    chosen = int(np.flatnonzero(~beaten)[0])
    low, high = np.percentile(draws - draws[:, [0]], [2.5, 97.5], axis=0)
    return Rehearsed(tuple(ks), tuple(means.tolist()), tuple(low.tolist()), tuple(high.tolist()), int(ks[chosen]))
