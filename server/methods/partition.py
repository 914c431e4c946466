"""Partition rules that methods share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings
from server.clustering import (
    Chance,
    agglomerate,
    agglomerate_auto,
    agglomerate_guarded,
    directions_of,
    k_means,
    modularity_partition,
)
from server.methods.method import Grouping
from server.methods.training import Placement


class OneGroup:
    """Everybody trains one model."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Put all sites into group 0."""
        return Grouping(np.zeros(sites, np.int64))

    def place(self, distance: NDArray[np.float64] | None, labels: NDArray[np.int64]) -> Placement:
        """A newcomer joins the one group."""
        return Placement(0, 1.0)


class Alone:
    """Every site trains a model of its own."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Give each site its own group."""
        return Grouping(np.arange(sites, dtype=np.int64))

    def place(self, distance: NDArray[np.float64] | None, labels: NDArray[np.int64]) -> Placement:
        """A newcomer founds a group."""
        return Placement(int(labels.max(initial=-1)) + 1, 1.0)


class _NearestGroup:
    """Where a newcomer goes under every rule that groups by distance."""

    def place(self, distance: NDArray[np.float64] | None, labels: NDArray[np.int64]) -> Placement:
        """Choose the group with the smallest mean distance; confidence is the margin to the runner-up in [0, 1]."""
        assert distance is not None
        groups = np.unique(labels)
        means = np.array([distance[labels == group].mean() for group in groups])
        order = np.argsort(means, kind="stable")
        best = means[order[0]]
        margin = 1.0 - best / means[order[1]] if len(groups) > 1 and means[order[1]] > 0 else float(len(groups) == 1)
        return Placement(int(groups[order[0]]), float(margin))


class Agglomerative(_NearestGroup):
    """Agglomerative clustering at a fixed K, below a threshold, or at the K chosen by silhouette."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Group by `distance`, as `settings` say."""
        assert distance is not None
        if settings.threshold:
            return Grouping(agglomerate(distance, threshold=settings.threshold, linkage=settings.linkage))
        if settings.k:
            # Sites may have failed since the settings were checked against their number.
            return Grouping(agglomerate(distance, k=min(settings.k, sites), linkage=settings.linkage))
        if settings.rule == "published":
            return Grouping(*agglomerate_auto(distance, k_max=settings.k_max, linkage=settings.linkage))
        return Grouping(*agglomerate_guarded(distance, chance, k_max=settings.k_max, linkage=settings.linkage))


class CompleteLinkage(_NearestGroup):
    """Groups in which no two sites are farther apart than a threshold."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Group by `distance`, merging up to `settings.threshold`."""
        assert distance is not None
        return Grouping(agglomerate(distance, threshold=settings.threshold, linkage="complete"))


class Modularity(_NearestGroup):
    """Communities of the graph whose weights are the similarities 1 − distance; the graph decides how many."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Group by `distance` = 1 − cosine."""
        assert distance is not None
        return Grouping(modularity_partition(1.0 - distance, settings.resolution))


class KMeans(_NearestGroup):
    """K-means on directions, of which the cosines 1 − distance are known."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Group by `distance` = 1 − cosine, into `settings.k` groups."""
        assert distance is not None
        points = directions_of(1.0 - distance)
        return Grouping(k_means(points, min(settings.k, sites), seed=0))
