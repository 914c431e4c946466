"""From fingerprints to groups: distances, linkage, silhouettes, automatic K, communities of a graph; whether it is more
than chance, how sure they are, and a map of them. Arrays only."""

from __future__ import annotations

from server.clustering.angles import principal_angles, subspace_distance
from server.clustering.chance import Chance, chance_of
from server.clustering.cosine import bipartition, cosine_distance, cosine_similarity
from server.clustering.distances import overlap_distance
from server.clustering.graph import modularity_partition, path_similarity
from server.clustering.guarded import agglomerate_guarded
from server.clustering.linkage import Linkage, MergeTree, agglomerate, merge_tree
from server.clustering.newcomer import find_place
from server.clustering.rehearsed import Rehearsed, fewest_as_good
from server.clustering.scaling import SiteMap, site_map
from server.clustering.select_k import KSelection, agglomerate_auto, select_k
from server.clustering.silhouette import mean_silhouette, silhouettes_of_cuts, site_silhouettes
from server.clustering.stability import Stability, redraw

__all__ = [
    "Chance",
    "KSelection",
    "Linkage",
    "MergeTree",
    "Rehearsed",
    "SiteMap",
    "Stability",
    "agglomerate",
    "agglomerate_auto",
    "agglomerate_guarded",
    "bipartition",
    "chance_of",
    "cosine_distance",
    "cosine_similarity",
    "fewest_as_good",
    "find_place",
    "mean_silhouette",
    "merge_tree",
    "modularity_partition",
    "overlap_distance",
    "path_similarity",
    "principal_angles",
    "redraw",
    "select_k",
    "silhouettes_of_cuts",
    "site_map",
    "site_silhouettes",
    "subspace_distance",
]
