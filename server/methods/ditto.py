"""Ditto: FedAvg, and beside it a model of each site's own."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="ditto",
    title="Ditto",
    paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021",
    summary="FedAvg, and at each site a model of its own that is held near it; trains twice",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="ditto",
    settings_used=("ditto.pull",),
)

METHODS = (METHOD,)
