"""How sure a grouping is: what becomes of it when some of the sites are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.clustering.distances import Matrix, Vector, checked_distance

# With three, two are left once one is left out: they have one distance, and nothing to hold it against.
FEWEST_SITES = 4


@dataclass(frozen=True)
class Stability:
    """What a grouping does when sites are left out (consensus clustering, Monti et al. 2003).

    Attributes
    ----------
    draws
        How often sites were left out and the rest was grouped anew.
    together : float64[N, N]
        Share of the draws with both sites in which they were in one group; NaN if no draw had both. 1 on the diagonal.
    group_counts
        How many draws ended with how many groups.
    """

    draws: int
    together: Matrix
    group_counts: dict[int, int]

    def kept_together(self, labels: NDArray[np.int64]) -> float:
        """Mean of `together` over the pairs that share a group; NaN if there are none."""
        return self._mean(labels, same=True)

    def kept_apart(self, labels: NDArray[np.int64]) -> float:
        """Mean of 1 - `together` over the pairs from different groups; NaN if there are none."""
        return 1.0 - self._mean(labels, same=False)

    def with_own(self, labels: NDArray[np.int64]) -> Vector:
        """float64[N]: how often each site is with the other members of its group; NaN for a site alone."""
        shared = np.where(np.equal.outer(labels, labels), self.together, np.nan)
        np.fill_diagonal(shared, np.nan)
        return _row_means(shared)

    def with_rival(self, labels: NDArray[np.int64]) -> Vector:
        """How often each site is with the group, other than its own, that it is with most; 0 where there is none."""
        groups = np.unique(labels)
        shares = np.zeros((len(labels), len(groups)))
        for column, group in enumerate(groups):
            shares[:, column] = np.nan_to_num(_row_means(self.together[:, labels == group]))
        shares[np.equal.outer(labels, groups)] = -1.0
        largest: Vector = shares.max(axis=1)
        return np.maximum(largest, 0.0)

    def _mean(self, labels: NDArray[np.int64], *, same: bool) -> float:
        pairs = np.triu(np.equal.outer(labels, labels) == same, 1) & ~np.isnan(self.together)
        return float(self.together[pairs].mean()) if pairs.any() else float("nan")


def redraw(
    distance: ArrayLike,
    group: Callable[[Matrix], NDArray[np.int64]],
    rng: np.random.Generator,
    *,
    draws: int = 100,
    share: float = 0.8,
) -> Stability | None:
    """Group random `share`s of the sites anew by `group`, which takes a distance matrix and returns labels 0..K-1.

    At least one site is left out each time. None for fewer than four sites.
    """
    matrix = checked_distance(distance)
    count = len(matrix)
    if count < FEWEST_SITES:
        return None
    kept = min(count - 1, max(2, round(share * count)))
    taken = np.zeros((draws, count))
    members = []
    sizes: Counter[int] = Counter()
    for draw in range(draws):
        drawn = np.sort(rng.choice(count, kept, replace=False))
        labels = group(np.ascontiguousarray(matrix[np.ix_(drawn, drawn)]))
        groups = int(labels.max()) + 1
        sizes[groups] += 1
        taken[draw, drawn] = 1.0
        indicator = np.zeros((groups, count))
        indicator[labels, drawn] = 1.0
        members.append(indicator)
    # Counting pairs is a product of indicators: sums of ones, exact in any order.
    everybody = np.concatenate(members)
    both, same = taken.T @ taken, everybody.T @ everybody
    together = np.divide(same, both, out=np.full((count, count), np.nan), where=both > 0)
    np.fill_diagonal(together, 1.0)
    return Stability(draws, together, dict(sorted(sizes.items())))


def _row_means(values: Matrix) -> Vector:
    """Mean of each row without its NaN; NaN where nothing is left."""
    defined = ~np.isnan(values)
    counts = defined.sum(axis=1)
    sums = np.where(defined, values, 0.0).sum(axis=1)
    means: Vector = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return means
