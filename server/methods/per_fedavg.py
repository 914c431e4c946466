"""Per-FedAvg: one start for all sites, from which a single step leads to each one's own model."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="per-fedavg",
    title="Per-FedAvg (FO)",
    paper="Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning "
    "Approach, NeurIPS 2020",
    summary="one model for all sites that is good to start from; each site is tested after one step of its own",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="per-fedavg",
    settings={"per_fedavg.gradient": "fo"},
    settings_used=("per_fedavg.alpha", "per_fedavg.beta"),
)

HESSIAN_FREE = METHOD.variant(
    name="per-fedavg-hf",
    title="Per-FedAvg (HF)",
    summary="as per-fedavg, with the second-order term that it leaves out, from two more gradients a step",
    settings={"per_fedavg.gradient": "hf"},
    settings_used=("per_fedavg.alpha", "per_fedavg.beta", "per_fedavg.delta"),
)

METHODS = (METHOD, HESSIAN_FREE)
