"""Per-FedAvg: the common model is a start from which one step makes each site's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of Per-FedAvg."""

    alpha: float = Field(0.01, ge=0, description="rate of the step by which a site makes the common model its own (α)")
    beta: float = Field(
        0.001, gt=0, description="rate of training, in the place of train.lr; train.schedule applies (β)"
    )
    gradient: Literal["fo", "hf"] = Field(
        "fo", description="fo: first-order; hf: with the Hessian's product, from two more gradients"
    )
    delta: float = Field(1e-3, gt=0, description="hf: how far apart these two gradients are taken (δ)")


AGREEMENT = Agreement("per-fedavg", Settings)
