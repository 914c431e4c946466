"""PACFL: sites grouped by the angles between the subspaces of their samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.methods.pacfl import Settings
from server.clustering import subspace_distance
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return subspace_distance([site.fingerprint.basis for site in sites], angle=config.of(Settings).angle)


METHOD = Method(
    name="pacfl",
    title="PACFL",
    about=(
        "When no encoder is at hand and pixels themselves tell sites apart. One singular value decomposition per "
        "class at a site; directions of its raw images travel, from which an image can be guessed, so a site's "
        "policy must name `pixels`. p = `pacfl.vectors` directions of the largest class and fewer, in proportion, "
        "of smaller ones; the site makes an orthonormal basis of them all, and the angles are those between the "
        'subspaces, whatever the bases. Pixels are taken at 32 × 32, RGB. Its public code calls "average" a '
        "mean of two cluster distances, whatever their sizes, and tests each site's own last model, however old."
    ),
    paper="Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via "
    "Principal Angles Between Client Data Subspaces, AAAI 2023",
    summary="group sites once, by the angles between the subspaces of their raw pixels; one FedAvg per group",
    family="clustered before training",
    fingerprint="subspace",
    distance=_distance,
    partition=Agglomerative(),
    settings={"encoder.name": "pixels", "encoder.weights": "", "encoder.image_size": 0},
    settings_used=("pacfl.vectors", "pacfl.angle", "cluster.k", "cluster.threshold", "cluster.linkage"),
)

WITH_FOUNDATION_MODEL = METHOD.variant(
    name="pacfl-fm",
    title="PACFL (FM)",
    about="As pacfl, where an encoder is at hand: less travels, and it tells less of an image.",
    paper="PACFL on the embeddings of FMCL's encoder, as in Ali & Brattain 2026",
    summary="as pacfl, with embeddings in the place of pixels",
    settings={},
)

METHODS = (METHOD, WITH_FOUNDATION_MODEL)
