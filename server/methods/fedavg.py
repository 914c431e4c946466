"""FedAvg: one model for all sites."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedavg",
    title="FedAvg",
    about=(
        "What to begin with, and what all others are measured by. A model down and one up each round. Where sites "
        "differ in their class shares alone, `train.prior` helps it more than any grouping."
    ),
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017",
    summary="one model for all sites",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
)

METHODS = (METHOD,)
