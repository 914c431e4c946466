"""FMCL: one-shot, class-aware clustering by foundation-model signatures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings
from common.signature import Signature
from server.clustering import overlap_distance
from server.methods.method import Method
from server.methods.partition import Agglomerative


def _distance(signatures: Sequence[Signature], settings: ClusterSettings) -> NDArray[np.float64]:
    return overlap_distance(
        signatures, alpha=settings.alpha, beta=settings.beta, epsilon=settings.epsilon, overlap=settings.overlap
    )


METHOD = Method(
    name="fmcl",
    title="FMCL",
    paper="Ali & Brattain, FMCL: Class-Aware Client Clustering with Foundation Model Representations, 2026",
    summary="group sites once, by class prototypes of a frozen encoder; one FedAvg per group",
    fingerprint="signature",
    distance=_distance,
    partition=Agglomerative(),
    settings_used=(
        "encoder.name", "cluster.k", "cluster.threshold", "cluster.linkage",
        "cluster.overlap", "cluster.alpha", "cluster.beta", "cluster.epsilon",
    ),
)  # fmt: skip

WITHOUT_OVERLAP = METHOD.variant(
    name="fmcl-no-overlap",
    title="FMCL (no overlap)",
    summary="as fmcl, without the penalty for little overlap of the class shares: an ablation",
    settings={"cluster.overlap": False},
)

FIXED_K = METHOD.variant(
    name="fmcl-fixed-k",
    title="FMCL (fixed K)",
    summary="as fmcl, with the number of groups given; needs cluster.k",
    needs_k=True,
)
