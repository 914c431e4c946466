"""From fingerprints to groups: distances, linkage, silhouettes, automatic K, communities of a graph; whether it is more
than chance, how sure they are, and a map of them. Arrays only."""

from __future__ import annotations

from server.clustering.angles import principal_angles, subspace_distance
from server.clustering.appearance import appearance_distance
from server.clustering.chance import Chance, chance_of, chance_of_last
from server.clustering.cosine import bipartition, cosine_distance, cosine_similarity, gram
from server.clustering.difference import GroupDifference, group_differences
from server.clustering.directions import (
    decomposed_cosines,
    directions_of,
    k_means,
    leading_coordinates,
    matched,
    mean_vector,
)
from server.clustering.distances import overlap_distance
from server.clustering.graph import modularity_partition, path_similarity
from server.clustering.guarded import agglomerate_guarded
from server.clustering.linkage import Linkage, MergeTree, agglomerate, merge_tree
from server.clustering.newcomer import find_place
from server.clustering.norms import norm_distance
from server.clustering.rand_index import adjusted_rand_index
from server.clustering.rehearsed import Rehearsed, fewest_as_good
from server.clustering.scaling import SiteMap, site_map
from server.clustering.select_k import KSelection, agglomerate_auto, select_k
from server.clustering.silhouette import mean_silhouette, silhouettes_of_cuts, site_silhouettes
from server.clustering.stability import Stability, redraw

__all__ = [
    "Chance",
    "GroupDifference",
    "KSelection",
    "Linkage",
    "MergeTree",
    "Rehearsed",
    "SiteMap",
    "Stability",
    "adjusted_rand_index",
    "agglomerate",
    "agglomerate_auto",
    "agglomerate_guarded",
    "appearance_distance",
    "bipartition",
    "chance_of",
    "chance_of_last",
    "cosine_distance",
    "cosine_similarity",
    "decomposed_cosines",
    "directions_of",
    "fewest_as_good",
    "find_place",
    "gram",
    "group_differences",
    "k_means",
    "leading_coordinates",
    "matched",
    "mean_silhouette",
    "mean_vector",
    "merge_tree",
    "modularity_partition",
    "norm_distance",
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
