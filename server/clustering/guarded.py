"""The guarded choice of the number of clusters: groups only where sites differ by more than chance.

What it does otherwise than the published rule (`select_k`), and why:

- One group unless the tests of `chance` speak for more: the silhouette of one group is 0 by definition, and noise
  alone gives two groups more than that. Where every site's class shares are in its softmax, other shares are no reason.
- Two groups may always be chosen: two clean ones push the variation of the distances above 0.70, where the published
  window begins at three.
- A cut that only parts single sites from all others says who is odd, not how the others are grouped. Where those have
  groups of their own, which show once the odd ones are nobody's neighbours, these are taken.
- As many groups as sites where all are equally far apart and it is not chance, as with no class in common anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.clustering.chance import Chance
from server.clustering.distances import checked_distance
from server.clustering.linkage import Linkage, merge_all
from server.clustering.select_k import KSelection, coefficient_of_variation
from server.clustering.silhouette import silhouettes_of_cuts

# A mean silhouette up to this is no substantial structure (Kaufman & Rousseeuw 1990, table 4).
NO_STRUCTURE = 0.25


def agglomerate_guarded(
    distance: ArrayLike, chance: Chance | None = None, *, k_max: int = 10, linkage: Linkage = "average"
) -> tuple[NDArray[np.int64], KSelection]:
    """Labels int64[N] of a float64[N, N] distance matrix, and how their number was chosen.

    `chance` None: the sites' fingerprints do not tell how much of their distances is chance; then only equal distances
    speak for one group.
    """
    if k_max < 1:
        raise ValueError(f"k_max must be at least 1; got {k_max}")
    matrix = checked_distance(distance)
    count = len(matrix)
    cv = coefficient_of_variation(matrix)
    tree = merge_all(matrix, linkage)
    if k_max == 1 or count == 1 or (cv == 0.0 if chance is None else not chance.speaks_for_groups):
        return tree.cut(1), KSelection(k=1, cv=cv, window=(1,), scores={1: 0.0})
    if cv == 0.0:
        return tree.cut(count), KSelection(k=count, cv=cv, window=(count,), scores={count: 0.0})
    silhouettes = silhouettes_of_cuts(matrix, tree, min(k_max, count))
    window = tuple(range(2, min(k_max, count) + 1))
    k = _best(silhouettes, window)
    if (np.bincount(tree.cut(k)) > 1).sum() == 1:
        among_others = silhouettes_of_cuts(matrix, tree, min(k_max, count), singles=False)
        within = _best(among_others, window)
        k = within if among_others[within] > NO_STRUCTURE else k
    return tree.cut(k), KSelection(k=k, cv=cv, window=window, scores={c: silhouettes[c] for c in window})


def _best(silhouettes: Mapping[int, float], window: Sequence[int]) -> int:
    """The K with the largest silhouette; the smallest of equals."""
    return max(window, key=lambda k: (silhouettes[k], -k))
