"""Two networks that answer together: the group's, and one of the site's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Blend(nn.Module):
    """p = w · group + (1 − w) · own, of probabilities; the output is log p, which is its own log-softmax.

    The state has both networks' tensors, under `group.` and `own.`; the weight w, in (0, 1), is not part of it.
    """

    def __init__(self, group: nn.Module, own: nn.Module, weight: float) -> None:
        super().__init__()
        if not 0 < weight < 1:
            raise ValueError(f"the weight of the group's model in a blend is between 0 and 1, not {weight}")
        self.group = group
        self.own = own
        self._shares = math.log(weight), math.log1p(-weight)

    def forward(self, inputs: Tensor) -> Tensor:
        group, own = (
            functional.log_softmax(network(inputs), dim=1) + share
            for network, share in zip((self.group, self.own), self._shares, strict=True)
        )
        return torch.logaddexp(group, own)
