"""Do sites differ by more than chance? Tests of the hypothesis that all draw from the same data.

Under it every site draws its labels from the same class shares, and the embeddings of a class from the same
distribution, whatever its shape. Then class counts differ as far as multinomial draws do, and class means as far as the
scatter within classes gives (`class_means`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from common.signature import Signature
from server.clustering.class_means import chance_of_means

# Each of the two tests finds a difference that is not there in about so many of all federations, in twice as many where
# sites are few and tables sparse: both together stay below 5 %.
LEVEL = 0.01


@dataclass(frozen=True)
class Chance:
    """How often sites that all draw from the same data would differ as much as these do.

    Attributes
    ----------
    shares
        In their class shares: a p-value.
    means
        In their class means, within classes: a p-value.
    """

    shares: float
    means: float

    @property
    def ruled_out(self) -> bool:
        """Whether there is more structure than chance explains."""
        return self.shares_differ or self.means_differ

    @property
    def shares_differ(self) -> bool:
        """Whether some sites have other class shares than others."""
        return self.shares < LEVEL

    @property
    def means_differ(self) -> bool:
        """Whether a class looks different at some sites than at others."""
        return self.means < LEVEL


def chance_of(signatures: Sequence[Signature], sizes: Sequence[int]) -> Chance:
    """Test the sites' signatures, given the training samples n_i of each."""
    counts = [np.rint(signature.shares * size) for signature, size in zip(signatures, sizes, strict=True)]
    table = np.zeros((len(signatures), max(int(signature.classes[-1]) for signature in signatures) + 1))
    for row, signature, own in zip(table, signatures, counts, strict=True):
        row[signature.classes] = own
    return Chance(chance_of_shares(table), chance_of_means(signatures, counts))


def chance_of_shares(table: NDArray[np.float64]) -> float:
    """p of Pearson's X^2 over the table of sites and classes, given its margins.

    Counts are small and margins uneven, so X^2 is not held against a chi-squared distribution but against a gamma
    distribution with its exact mean and variance.
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    total = float(table.sum())
    if min(table.shape) < 2 or total < 4:
        return 1.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    statistic = float(((table - expected) ** 2 / expected).sum())
    mean, variance = moments(table.sum(axis=1), table.sum(axis=0))
    # There is no other table with these margins, or none that differs in X^2.
    if variance <= 1e-12 * mean:
        return 1.0
    return float(gammaincc(mean**2 / variance, statistic * mean / variance))


def moments(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and variance of X^2 over all tables with these margins, of at least four samples (Haldane 1940)."""
    total = float(rows.sum())

    def terms(sums: NDArray[np.float64]) -> tuple[float, float]:
        count = len(sums)
        uneven = (total * float((1 / sums).sum()) - count**2) / (total - 2)
        return (count - 1) * (total - count) / (total - 1), uneven

    (free_r, uneven_r), (free_c, uneven_c) = terms(rows), terms(columns)
    mean = total * (len(rows) - 1) * (len(columns) - 1) / (total - 1)
    variance = (
        2 * total / (total - 3) * (free_r - uneven_r) * (free_c - uneven_c)
        + total**2 / (total - 1) * uneven_r * uneven_c
    )
    return mean, variance
