"""Per-FedAvg: one start for all sites, from which a single step leads to each one's own model."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup

METHOD = Method(
    name="per-fedavg",
    title="Per-FedAvg (FO)",
    about=(
        "When sites will adapt with few samples. Two gradients a step and no momentum; a model down and up. A "
        "site is tested, and keeps its model, after one step on its *training* samples: public versions adapt on "
        "test samples, or not at all. `train.momentum` and `train.weight_decay` take no part; `per_fedavg.beta` "
        "takes the place of `train.lr`."
    ),
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
    about=(
        "As per-fedavg, where its first-order shortcut is too rough: four gradients a step. One library restores "
        "batch norm's statistics after each step, which then never move."
    ),
    summary="as per-fedavg, with the second-order term that it leaves out, from two more gradients a step",
    settings={"per_fedavg.gradient": "hf"},
    settings_used=("per_fedavg.alpha", "per_fedavg.beta", "per_fedavg.delta"),
)

METHODS = (METHOD, HESSIAN_FREE)
