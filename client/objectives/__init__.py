"""What a site minimises in local training, one file each."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from client.objectives.plain import plain

# (model, inputs, labels int64[n]) -> scalar loss, a mean over the batch.
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]

# An objective is made from the model as received, so that one which holds on to it can remember it.
OBJECTIVES: dict[str, Callable[[nn.Module], Objective]] = {"plain": lambda received: plain}

__all__ = ["OBJECTIVES", "Objective", "plain"]
