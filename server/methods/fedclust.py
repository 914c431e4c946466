"""FedClust: sites grouped once, by their heads after a short warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.methods.fedclust import Settings
from server.clustering import norm_distance
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    """‖h_i − h_j‖₂: heads from one start differ as their changes do. They grow with rate and steps; parts do not."""
    distance = norm_distance([site.fingerprint.change for site in sites], "l2")
    largest = float(distance.max())
    return distance / largest if config.of(Settings).relative and largest > 0 else distance


METHOD = Method(
    name="fedclust",
    title="FedClust",
    about=(
        "FedCM's warm-up in short: compared by the Euclidean distance of the heads. A model down and a head up "
        "before training. The distances grow with rate and steps: `cluster.threshold` is absolute, with "
        "`fedclust.relative` in parts of the largest, or leave it to the silhouette. Newcomers warm up from the "
        "model all began with. A public relative of it averages cluster distances whatever the clusters' sizes."
    ),
    paper="Islam et al., FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client "
    "Clustering, ICPP 2024",
    summary="group sites once, by how far their heads are apart after a warm-up; one FedAvg per group",
    family="clustered before training",
    fingerprint="head",
    distance=_distance,
    partition=Agglomerative(),
    fingerprint_needs_model=True,
    settings_used=("fedclust.warm_up", "fedclust.relative", "cluster.k", "cluster.threshold", "cluster.linkage"),
)

METHODS = (METHOD,)
