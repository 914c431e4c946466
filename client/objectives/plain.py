"""Plain empirical risk: what FedAvg trains on."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def plain(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return functional.cross_entropy(model(inputs), labels)
