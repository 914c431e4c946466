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
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import gammaincc

from common.signature import Signature
from server.clustering import class_means
from server.clustering.class_means import chance_of_means

# Each of the two tests is to find a difference that is not there in about so many of all federations. At 0.015 both
# together did in up to 6.7 % where sites are few and tables sparse, so it was lowered. At 0.01 only IID federations of
# three sites were drawn again (0.9 to 2.2 %); how many true differences are found was not measured again.
LEVEL = 0.01
# Of the fixed point at which withheld samples are spread as all samples are.
ITERATIONS = 20


@dataclass(frozen=True)
class Chance:
    """How often sites that all draw from the same data would differ as much as these do.

    Attributes
    ----------
    shares
        In their class shares: a p-value.
    means
        In their class means, within classes: a p-value.
    shares_count
        Whether other class shares are a reason to group sites; not where every site's own are in its softmax.
    parts
        Into how many parts the sites fall between which no class is shared: nothing connects those.
    """

    shares: float
    means: float
    shares_count: bool = True
    parts: int = 1

    @property
    def ruled_out(self) -> bool:
        """Whether there is more structure than chance explains."""
        return self.shares_differ or self.means_differ

    @property
    def speaks_for_groups(self) -> bool:
        """Whether what differs by more than chance is a reason to group."""
        return self.means_differ or (self.shares_differ and (self.shares_count or self.parts > 1))

    @property
    def only_means_count(self) -> bool:
        """Whether groups are to be made by how classes look, and by nothing else."""
        return self.means_differ and not (self.shares_differ and self.shares_count)

    @property
    def shares_differ(self) -> bool:
        """Whether some sites have other class shares than others."""
        return self.shares < LEVEL

    @property
    def means_differ(self) -> bool:
        """Whether a class looks different at some sites than at others."""
        return self.means < LEVEL


def chance_of(
    signatures: Sequence[Signature],
    sizes: Sequence[int],
    withheld: NDArray[np.int64] | None = None,
    *,
    shares_count: bool = True,
) -> Chance:
    """Test the sites' signatures, given the samples n_i that each describes.

    `withheld` int64[N]: what each has besides, of classes that it does not name. `shares_count` as in `Chance`.
    """
    counts, table = _counted(signatures, sizes, withheld)
    return Chance(chance_of_shares(table), chance_of_means(signatures, counts), shares_count, parts(table))


def chance_of_last(
    signatures: Sequence[Signature],
    sizes: Sequence[int],
    withheld: NDArray[np.int64] | None = None,
    *,
    shares_count: bool = True,
) -> float:
    """How often the last site would differ as much from all others together if it drew from their data: a p-value.

    By class means, and if they count by class shares; 0 if it has no class of theirs. Parameters as in `chance_of`.
    """
    counts, table = _counted(signatures, sizes, withheld)
    both = np.stack([table[:-1].sum(axis=0), table[-1]])
    if parts(both) > 1:
        return 0.0
    means = class_means.chance_of_last(signatures, counts)
    return min(1.0, 2 * min(means, chance_of_shares(both))) if shares_count else means


def _counted(
    signatures: Sequence[Signature], sizes: Sequence[int], withheld: NDArray[np.int64] | None
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Samples of each signature's classes, and the table float64[N, C] of all, with those that are withheld."""
    counts = [np.rint(signature.shares * size) for signature, size in zip(signatures, sizes, strict=True)]
    table = np.zeros((len(signatures), max(int(signature.classes[-1]) for signature in signatures) + 1))
    for row, signature, own in zip(table, signatures, counts, strict=True):
        row[signature.classes] = own
    if withheld is not None and withheld.any():
        table = with_withheld(table, withheld)
    return counts, table


def parts(table: NDArray[np.float64]) -> int:
    """The connected components of sites that share a class, from the samples float64[N, C] of each site and class."""
    sites, classes = table.shape
    site, label = np.nonzero(table)
    graph = coo_array((np.ones(len(site)), (site, sites + label)), shape=(sites + classes,) * 2)
    named = connected_components(graph, directed=False)[1][:sites]
    return len(np.unique(named))


def with_withheld(table: NDArray[np.float64], withheld: NDArray[np.int64]) -> NDArray[np.float64]:
    """The table float64[N, C] of named samples, with those that sites withhold spread over what they do not name.

    A class that a site does not name is rare there, not missing. Withheld samples are taken to be of the unnamed
    classes in the proportions that these have over all sites, withheld samples included: a fixed point. The classes
    that nobody names are one more column, without which their samples would be counted for classes that some do name.
    """
    named = np.column_stack([table[:, table.any(axis=0)], np.zeros(len(table))])
    # Never empty: nobody names what is in the last column.
    unnamed = named == 0
    spread: NDArray[np.float64] = named
    weights = unnamed.astype(np.float64)
    for _ in range(ITERATIONS):
        spread = named + withheld[:, None] * weights / weights.sum(axis=1, keepdims=True)
        weights = unnamed * spread.sum(axis=0)
    # Less than one sample is no class.
    kept: NDArray[np.float64] = spread[:, spread.sum(axis=0) >= 1]
    return kept


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
