"""FedPer: one body for all sites, and a head for each."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedper",
    title="FedPer",
    paper="Arivazhagan et al., Federated Learning with Personalization Layers, 2019",
    summary="one body for all sites; the head of each is its own and never leaves it",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="fedper",
)

METHODS = (METHOD,)
