"""DC: data collaboration analysis with one model for all sites."""

from __future__ import annotations

from server.methods.dc_cfl import distance
from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="dc",
    title="DC",
    about="As dc-cfl, where all sites' labels are alike: one model for all, in one round.",
    paper="Imakura & Sakurai, Data Collaboration Analysis Framework Using Centralization of Individual Intermediate "
    "Representations for Distributed Data Sets, 2020",
    summary="as dc-cfl, with all sites in one group",
    family="one round",
    fingerprint="collaboration",
    distance=distance,
    partition=OneGroup(),
    clustered=False,
    settings_used=(
        "collaboration.anchors",
        "collaboration.dimensions",
        "collaboration.aggregate",
        "collaboration.noise",
        "data.input",
    ),
)

METHODS = (METHOD,)
