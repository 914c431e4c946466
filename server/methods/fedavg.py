"""FedAvg: one model for all sites."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedavg",
    title="FedAvg",
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017",
    summary="one model for all sites",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
)

METHODS = (METHOD,)
