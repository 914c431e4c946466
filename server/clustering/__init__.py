"""From signatures to groups: distances, linkage, silhouettes and the automatic number of clusters. Arrays only."""

from __future__ import annotations

from server.clustering.distances import overlap_distance
from server.clustering.linkage import Linkage, MergeTree, agglomerate, merge_tree
from server.clustering.select_k import KSelection, agglomerate_auto, select_k
from server.clustering.silhouette import mean_silhouette

__all__ = [
    "KSelection",
    "Linkage",
    "MergeTree",
    "agglomerate",
    "agglomerate_auto",
    "mean_silhouette",
    "merge_tree",
    "overlap_distance",
    "select_k",
]
