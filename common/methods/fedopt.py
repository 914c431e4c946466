"""FedOpt: how the server steps along the mean of what its sites change."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of FedAdam, FedYogi and FedAdagrad."""

    rate: float = Field(
        0.0, ge=0, description="the server's learning rate (η_s); 0: 0.1 for fedadam and fedadagrad, 0.01 for fedyogi"
    )
    beta_1: float = Field(0.9, ge=0, lt=1, description="how much of the last direction is kept (β₁)")
    beta_2: float = Field(0.99, ge=0, lt=1, description="how much of the last squares is kept (β₂); not of fedadagrad")
    epsilon: float = Field(1e-3, gt=0, description="how adaptive the steps are (ε, τ in the paper)")


AGREEMENT = Agreement("fedopt", Settings, private=True)
