"""FECFL: sites grouped by the mean of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from server.clustering import cosine_distance
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return cosine_distance([site.fingerprint.mean for site in sites])


WITH_FOUNDATION_MODEL = Method(
    name="fecfl-fm",
    title="FECFL (FM)",
    about=(
        "When sites differ as a whole, by device or place, and not class by class: one mean embedding per site. "
        "One pass of the encoder and a few kilobytes. A mean over few samples moves more than classes differ, so "
        "small sites are set apart."
    ),
    paper="FECFL with the encoder of FMCL in the place of its own, as in Ali & Brattain 2026",
    summary="group sites once, by the mean embedding of all their samples; one FedAvg per group",
    family="clustered before training",
    fingerprint="mean",
    distance=_distance,
    partition=Agglomerative(),
    settings_used=("encoder.name", "cluster.k", "cluster.threshold", "cluster.linkage"),
)

METHOD = WITH_FOUNDATION_MODEL.variant(
    name="fecfl",
    title="FECFL",
    about=(
        "An ablation of fecfl-fm: how far a network gets that was never trained. The encoder is a ResNet18 drawn "
        "from the run's seed, so it costs a download of nothing and one pass at each site."
    ),
    paper="Feature-extraction-based clustered FL, as compared with in Ali & Brattain 2026",
    summary="as fecfl-fm, with an untrained encoder that all sites draw from the run's seed",
    settings={"encoder.name": "random:resnet18", "encoder.weights": ""},
)

METHODS = (METHOD, WITH_FOUNDATION_MODEL)
