"""LG-FedAvg: local representations under global last layers."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="lg-fedavg",
    title="LG-FedAvg",
    about=(
        "When sites see alike things through different instruments: what lies low is theirs, the last "
        "`lg_fedavg.layers` linear layers are common. Little travels; each site remembers the rest. Starts from "
        "the common weights, not from a finished FedAvg model. One library shares the first layers instead of the "
        "last, and the official code chooses each site's best round on test data."
    ),
    paper="Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020",
    summary="the last layers are one for all sites; what lies below is each site's own and never leaves it",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="lg-fedavg",
    settings_used=("lg_fedavg.layers",),
)

METHODS = (METHOD,)
