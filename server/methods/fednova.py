"""FedNova: updates are divided by what their local steps amount to, so that a site with more steps pulls no harder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.extras import InvalidExtras
from common.local_steps import step_weight
from common.methods.fednova import PROGRESS
from common.state import State
from common.tensor_names import is_parameter
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, TrainingRule

# The normaliser of a site goes through the mean as one more array: a whole number, because their sums are exact.
_WEIGHT = "step weight"
_UNIT = 2.0**-32
_MOST = 2.0**30


class NormalisedAveraging(TrainingRule):
    """x⁺ = x − τ_eff η Σ p_i d_i with d_i = (x − x_i) / (η ‖a_i‖₁) and τ_eff = Σ p_i ‖a_i‖₁ (FedNova, algorithm 1).

    Written as a mean: z_i = x + (x_i − x) / ‖a_i‖₁ is averaged with the weights p_i, and x⁺ = x + τ_eff (z̄ − x). Batch
    norm's statistics are averaged as they are.
    """

    def reference(self, model: State) -> State:
        """Terms are float64, so that dividing and multiplying again loses nothing that float32 holds."""
        wide = {name: array.astype(np.float64) if is_parameter(name) else array for name, array in model.items()}
        return wide | {_WEIGHT: np.array(0, np.int64)}

    def term(self, contribution: Contribution) -> State:
        """z_i, and ‖a_i‖₁."""
        weight = self._weight(contribution)
        return {
            name: _divided(contribution.before[name], after, weight) if is_parameter(name) else after
            for name, after in contribution.after.items()
        } | {_WEIGHT: np.array(round(weight / _UNIT), np.int64)}

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Take the mean direction as far as the sites went on average."""
        effective = float(mean.pop(_WEIGHT)) * _UNIT
        return {
            name: (x + effective * (mean[name] - x)).astype(x.dtype) if is_parameter(name) else mean[name]
            for name, x in before.items()
        }

    def _weight(self, contribution: Contribution) -> float:
        train = self.config.train
        steps = int(contribution.extras[PROGRESS]["steps"])
        most = train.epochs * math.ceil(max(contribution.samples, 2) / train.batch_size)
        if steps > most:
            raise InvalidExtras(f"it claims {steps} steps where {contribution.samples} samples make at most {most}")
        return min(step_weight(steps, momentum=train.momentum), _MOST)


def _divided(before: NDArray[Any], after: NDArray[Any], weight: float) -> NDArray[np.float64]:
    start = before.astype(np.float64)
    moved: NDArray[np.float64] = start + (after - start) / weight
    return moved


METHOD = Method(
    name="fednova",
    title="FedNova",
    about=(
        "When sites take very different numbers of steps: what they send is divided by the weight of their steps, "
        "so that a large site's many steps do not count twice. Costs a number beside the update. With equal steps "
        "it is FedAvg. Public versions add the proximal term to the momentum itself, count the first step as 1.9 "
        "with momentum and μ together, or put scaled updates through a mean that undoes the scale."
    ),
    paper="Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, "
    "NeurIPS 2020",
    summary="one model for all sites, whose updates count the same however many steps each of them took",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
    rule="fednova",
    training=NormalisedAveraging,
)

METHODS = (METHOD,)
