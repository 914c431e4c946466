"""What a site minimises in local training, one file each."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from client.objectives.plain import plain
from client.objectives.prox import Prox
from common.config import TrainSettings

# (model, inputs, labels int64[n]) -> scalar loss, a mean over the batch.
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]
MakeObjective = Callable[[nn.Module, TrainSettings], Objective]

# An objective is made from the model as received, so that one which holds on to it can remember it.
OBJECTIVES: dict[str, MakeObjective] = {
    "plain": lambda received, settings: plain,
    "prox": Prox,
}

__all__ = ["OBJECTIVES", "MakeObjective", "Objective", "Prox", "plain"]
