"""A closer look at a grouping: map, tree, silhouettes, and how sure it is. Computed once per grouping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings
from common.randomness import generator
from server.clustering import (
    Chance,
    MergeTree,
    SiteMap,
    Stability,
    merge_tree,
    redraw,
    silhouettes_of_cuts,
    site_map,
    site_silhouettes,
)
from server.clustering.guarded import NO_STRUCTURE
from server.methods import get_method
from server.methods.partition import Agglomerative
from server.report.record import RunRecord

LEFT_OUT = 0.2
# Shares of draws from which a grouping is called steady, and fairly steady.
SURE, UNSURE = 0.9, 0.75
# Up to so many sites, so many draws: 100 are enough for shares within some 5 %; fewer where a single one takes long.
_DRAWS = ((250, 100), (math.inf, 40))
# A site whose lead over the next group is smaller than this is hard to place.
_LEAD = 0.5
# How the mean silhouette is read (Kaufman & Rousseeuw 1990, table 4).
_READINGS = ((0.70, "strong"), (0.50, "reasonable"), (NO_STRUCTURE, "weak"), (-math.inf, "no substantial"))


@dataclass(frozen=True)
class Study:
    """What a distance matrix says about a grouping. Rows are the sites that are compared, in the order of the grouping.

    Attributes
    ----------
    order : int64[N]
        Sites so that groups, and within them alike sites, stand side by side.
    tree
        The merges; None where the method does not merge.
    curve
        Mean silhouette of every number of groups that was possible; empty where the method does not choose among cuts.
    silhouette, silhouettes
        Mean and per site of the grouping itself.
    stability
        None for fewer than four sites.
    own, rival
        How often each site is with its own group and with the nearest other one when sites are left out.
    hard : bool[N]
        Sites that could as well be elsewhere.
    """

    map: SiteMap
    order: NDArray[np.int64]
    tree: MergeTree | None
    curve: dict[int, float]
    silhouette: float
    silhouettes: NDArray[np.float64]
    stability: Stability | None
    own: NDArray[np.float64]
    rival: NDArray[np.float64]
    hard: NDArray[np.bool_]


def study(record: RunRecord) -> Study | None:
    """Look at the grouping of a run; None if it has no distances or its method is not known any more."""
    if record.compared is None or record.distance is None or record.recipe is None:
        return None
    return _study(
        record.distance.tobytes(),
        record.compared.labels.tobytes(),
        record.method,
        record.clustering,
        record.seed,
        record.compared.chance,
    )


# A growing run is looked at again and again, and all of this hangs on the grouping alone.
@lru_cache(maxsize=8)
def _study(
    distance: bytes, labels: bytes, method: str, settings: ClusterSettings, seed: int, chance: Chance | None
) -> Study:
    # Numbered anew: of some of very many sites not every group need be there.
    groups = np.unique(np.frombuffer(labels, np.int64), return_inverse=True)[1]
    count = len(groups)
    matrix = np.frombuffer(distance, np.float64).reshape(count, count)
    partition = get_method(method).partition
    if settings.choice == "rehearsal":
        # Nobody can be rehearsed with here: what is looked at is how sure the groups are, given their number.
        settings = settings.model_copy(update={"k": int(groups.max()) + 1})

    def form(part: NDArray[np.float64]) -> NDArray[np.int64]:
        return partition.form(part, len(part), settings, chance).labels

    merges = isinstance(partition, Agglomerative) and count > 1
    tree = merge_tree(matrix, linkage=settings.linkage) if merges else None
    curve = (
        silhouettes_of_cuts(matrix, tree, min(count, max(settings.k_max, int(groups.max()) + 1) + 1)) if tree else {}
    )
    draws = next(draws for most, draws in _DRAWS if count <= most)
    stability = redraw(matrix, form, generator(seed, "stability"), draws=draws, share=1 - LEFT_OUT)
    silhouettes = site_silhouettes(matrix, groups)
    own, rival = np.full(count, np.nan), np.zeros(count)
    hard = np.zeros(count, np.bool_)
    if stability is not None:
        own, rival = stability.with_own(groups), stability.with_rival(groups)
        # Who is alone has nobody to stay with; what counts is how seldom it joins others.
        lead = np.where(np.isnan(own), 1.0 - rival, own - rival)
        hard = (lead < _LEAD) | (silhouettes < 0)
    return Study(
        map=site_map(matrix),
        order=_leaves(tree, groups) if tree else np.lexsort((np.arange(count), groups)),
        tree=tree,
        curve=curve,
        silhouette=float(silhouettes.mean()),
        silhouettes=silhouettes,
        stability=stability,
        own=own,
        rival=rival,
        hard=hard,
    )


def _leaves(tree: MergeTree, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sites from left to right under the tree, so that no branches cross; smaller group numbers further left."""
    leaves = {site: [site] for site in range(tree.sites)}
    for left, right in tree.pairs.tolist():
        leaves[left] += leaves.pop(right)
    order = np.array(leaves[0])
    return order if groups[order[0]] == groups.min() else order[::-1].copy()


def reading(silhouette: float) -> str:
    """How much structure a mean silhouette stands for, in a word."""
    return next(word for above, word in _READINGS if silhouette > above)
