"""FMCL: one-shot, class-aware clustering by foundation-model signatures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings, Config
from common.randomness import generator
from common.signature import Signature
from server.clustering import Chance, appearance_distance, chance_of, chance_of_last, find_place, overlap_distance
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative
from server.methods.training import Placement


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return _between([site.fingerprint for site in sites], config.cluster)


def _between(signatures: Sequence[Signature], settings: ClusterSettings) -> NDArray[np.float64]:
    return overlap_distance(
        signatures,
        alpha=settings.alpha,
        beta=settings.beta,
        epsilon=settings.epsilon,
        overlap=settings.overlap,
        rule=settings.rule,
    )


def _appearance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return appearance_distance([site.fingerprint for site in sites], [site.card.named_samples for site in sites])


def _chance(sites: Sequence[Described], config: Config) -> Chance:
    return chance_of(*_samples(sites), shares_count=config.train.prior == "off")


def _samples(sites: Sequence[Described]) -> tuple[list[Signature], list[int], NDArray[np.int64]]:
    """What sites say, the samples that this describes, and those that they withhold."""
    withheld = np.array([site.card.withheld for site in sites], np.int64)
    return [site.fingerprint for site in sites], [site.card.named_samples for site in sites], withheld


def _place(members: Sequence[Described], labels: NDArray[np.int64], newcomer: Described, config: Config) -> Placement:
    by_looks = METHOD.grouped_by(_chance(members, config), config) is _appearance
    signatures, sizes, _ = _samples(members)

    def chance(among: NDArray[np.int64]) -> float:
        return chance_of_last(*_samples([*(members[i] for i in among), newcomer]), shares_count=not by_looks)

    found = find_place(
        newcomer.fingerprint,
        newcomer.card.named_samples,
        signatures,
        sizes,
        labels,
        appearance_distance if by_looks else lambda signatures, _: _between(signatures, config.cluster),
        chance,
        generator(config.seed, "newcomer", newcomer.card.name),
    )
    return Placement(found.group, found.confidence, found.fits)


METHOD = Method(
    name="fmcl",
    title="FMCL",
    about=(
        "The default. When sites may differ in what classes look like, and an encoder sees it. One pass of the "
        "encoder and one vector per class, once; grouping costs no training, and where sites do not differ by "
        "more than chance there is one group."
    ),
    paper="Ali & Brattain, FMCL: Class-Aware Client Clustering with Foundation Model Representations, 2026",
    summary="group sites once, by class prototypes of a frozen encoder; one FedAvg per group",
    family="clustered before training",
    fingerprint="signature",
    distance=_distance,
    chance=_chance,
    appearance=_appearance,
    place=_place,
    partition=Agglomerative(),
    settings_used=(
        "encoder.name", "cluster.rule", "cluster.choice", "cluster.k", "cluster.threshold", "cluster.linkage",
        "cluster.overlap", "cluster.alpha", "cluster.beta", "cluster.epsilon",
    ),
)  # fmt: skip

WITHOUT_OVERLAP = METHOD.variant(
    name="fmcl-no-overlap",
    title="FMCL (no overlap)",
    about="An ablation from the paper: without the overlap of class shares.",
    summary="as fmcl, without the penalty for little overlap of the class shares: an ablation",
    settings={"cluster.overlap": False},
)

FIXED_K = METHOD.variant(
    name="fmcl-fixed-k",
    title="FMCL (fixed K)",
    about="An ablation from the paper, and for those who know K.",
    summary="as fmcl, with the number of groups given; needs cluster.k",
    needs_k=True,
)

METHODS = (METHOD, FIXED_K, WITHOUT_OVERLAP)
