"""FECFL: sites grouped by the mean of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings
from common.mean_feature import MeanFeature
from server.clustering import cosine_distance
from server.methods.method import Method
from server.methods.partition import Agglomerative


def _distance(means: Sequence[MeanFeature], settings: ClusterSettings) -> NDArray[np.float64]:
    return cosine_distance([mean.mean for mean in means])


WITH_FOUNDATION_MODEL = Method(
    name="fecfl-fm",
    title="FECFL (FM)",
    paper="FECFL with the encoder of FMCL in the place of its own, as in Ali & Brattain 2026",
    summary="group sites once, by the mean embedding of all their samples; one FedAvg per group",
    fingerprint="mean",
    distance=_distance,
    partition=Agglomerative(),
    settings_used=("encoder.name", "cluster.k", "cluster.threshold", "cluster.linkage"),
)

METHOD = WITH_FOUNDATION_MODEL.variant(
    name="fecfl",
    title="FECFL",
    paper="Feature-extraction-based clustered FL, as compared with in Ali & Brattain 2026",
    summary="as fecfl-fm, with an untrained encoder that all sites draw from the run's seed",
    settings={"encoder.name": "random:resnet18", "encoder.weights": ""},
)
