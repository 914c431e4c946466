"""FedPer: one body for all sites, and a head for each."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedper",
    title="FedPer",
    about=(
        "When features are common and labels mean different things. Costs less than FedAvg: the head stays at the "
        "site, which remembers it. Public versions upload personal layers all the same, match tensors by "
        "position, or take batch norm's statistics of the first site."
    ),
    paper="Arivazhagan et al., Federated Learning with Personalization Layers, 2019",
    summary="one body for all sites; the head of each is its own and never leaves it",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="fedper",
)

METHODS = (METHOD,)
