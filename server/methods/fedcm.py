"""FedCM: clustering by the similarity of gradient paths, and migration of sites whose data drift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from server.clustering import path_similarity
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative, KMeans, Modularity


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return 1.0 - path_similarity([site.fingerprint for site in sites])


METHOD = Method(
    name="fedcm",
    title="FedCM",
    paper="Wang et al., FedCM: Client Clustering and Migration in Federated Learning via Gradient Path Similarity and "
    "Update Direction Deviation, IJCAI 2025",
    summary="group sites by how their heads move in a warm-up; sites whose data drift move to another group",
    family="clustered before training",
    fingerprint="path",
    distance=_distance,
    partition=Modularity(),
    fingerprint_needs_model=True,
    migration="guarded",
    settings_used=("fedcm.warm_up", "cluster.resolution"),
)

# Its Table 2: the same similarities, grouped otherwise.
BY_K_MEANS = METHOD.variant(
    name="fedcm-k-means",
    title="FedCM (k-means)",
    summary="as fedcm, grouped by k-means on the similarities: an ablation; needs cluster.k",
    partition=KMeans(),
    settings_used=("fedcm.warm_up", "cluster.k"),
    needs_k=True,
)
HIERARCHICAL = METHOD.variant(
    name="fedcm-hierarchical",
    title="FedCM (hierarchical)",
    summary="as fedcm, grouped by agglomerative clustering of 1 − similarity: an ablation",
    partition=Agglomerative(),
    settings_used=("fedcm.warm_up", "cluster.k", "cluster.threshold", "cluster.linkage"),
)

METHODS = (METHOD, BY_K_MEANS, HIERARCHICAL)
