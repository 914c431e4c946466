"""FedProx: one model for all sites, held near the common one while they train."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedprox",
    title="FedProx",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
    summary="one model for all sites, which are held near it while they train",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
    rule="fedprox",
    settings_used=("fedprox.mu",),
)

METHODS = (METHOD,)
