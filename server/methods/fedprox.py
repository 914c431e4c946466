"""FedProx: one model for all sites, held near the common one while they train."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="fedprox",
    title="FedProx",
    about=(
        "When local training is long and sites pull apart: μ holds them near the common model. Costs one more "
        "pass over the weights a step. As `train.rule` it goes into groups. Batch norm's statistics are not held."
    ),
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
    summary="one model for all sites, which are held near it while they train",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
    rule="fedprox",
    settings_used=("fedprox.mu",),
)

METHODS = (METHOD,)
