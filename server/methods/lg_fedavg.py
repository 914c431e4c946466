"""LG-FedAvg: local representations under global last layers."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="lg-fedavg",
    title="LG-FedAvg",
    paper="Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020",
    summary="the last layers are one for all sites; what lies below is each site's own and never leaves it",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="lg-fedavg",
    settings_used=("lg_fedavg.layers",),
)

METHODS = (METHOD,)
