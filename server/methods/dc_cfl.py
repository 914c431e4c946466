"""DC-CFL: clustered learning in a single round, by data collaboration analysis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from server.collaboration.divergence import total_variation
from server.methods.method import Described, Method
from server.methods.partition import CompleteLinkage


def distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    """Total variation between the label histograms of what the sites sent."""
    labels = [site.fingerprint.labels for site in sites]
    classes = 1 + max(int(of_site.max()) for of_site in labels)
    return total_variation(np.stack([np.bincount(of_site, minlength=classes) for of_site in labels]))


METHOD = Method(
    name="dc-cfl",
    title="DC-CFL",
    about=(
        "For sites that may talk to the server once. Every row travels, through a map only the site knows: more "
        "than other methods send ([dc-cfl.md](dc-cfl.md)). The server trains, in seconds. With the paper's C = I "
        "the network hardly learns; ours is scaled."
    ),
    paper="Sugawara et al., Single-Round Clustered Federated Learning via Data Collaboration Analysis for Non-IID "
    "Data, 2026",
    summary="each site sends its rows once, through a map only it knows; the server groups by labels and trains",
    family="one round",
    fingerprint="collaboration",
    distance=distance,
    partition=CompleteLinkage(),
    settings_used=(
        "cluster.threshold",
        "collaboration.anchors",
        "collaboration.dimensions",
        "collaboration.aggregate",
        "collaboration.noise",
        "data.input",
    ),
)

METHODS = (METHOD,)
