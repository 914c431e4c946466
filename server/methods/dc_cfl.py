"""DC-CFL: clustered learning in a single round, by data collaboration analysis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.collaboration import Collaboration
from common.config import ClusterSettings
from server.collaboration.divergence import total_variation
from server.methods.method import Method
from server.methods.partition import CompleteLinkage


def distance(sites: Sequence[Collaboration], settings: ClusterSettings) -> NDArray[np.float64]:
    """Total variation between the label histograms of what the sites sent."""
    classes = 1 + max(int(site.labels.max()) for site in sites)
    return total_variation(np.stack([np.bincount(site.labels, minlength=classes) for site in sites]))


METHOD = Method(
    name="dc-cfl",
    title="DC-CFL",
    paper="Sugawara et al., Single-Round Clustered Federated Learning via Data Collaboration Analysis for Non-IID "
    "Data, 2026",
    summary="each site sends its rows once, through a map only it knows; the server groups by labels and trains",
    fingerprint="collaboration",
    distance=distance,
    partition=CompleteLinkage(),
    one_round=True,
    settings_used=(
        "cluster.threshold",
        "collaboration.anchors",
        "collaboration.dimensions",
        "collaboration.aggregate",
        "collaboration.noise",
        "data.input",
    ),
)
