"""LoRA (Hu et al. 2021): a frozen layer W learns a change of low rank, W + B A.

A is drawn by the seed and B begins as zero, so that at the start the layer does what it did. Adapted are the linear
layers of a network and its convolutions of a single pixel, which are linear layers over channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from common.models import fill_uniform

Layer = nn.Linear | nn.Conv2d

# The paper's α / r, which multiplies B A, as part of A: under SGD with a rate that suits the head, less learns nothing.
_SCALE = 4.0


class LowRankLinear(nn.Linear):
    """A linear layer whose weight is frozen + up · down.

    Parameters
    ----------
    layer
        What it was; its weight and bias are frozen.
    rank
        Rows of `down` (A in the paper) and columns of `up` (B); no more than the layer has inputs or outputs.
    """

    frozen: Tensor
    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        _adapt(self, layer, rank)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight as a whole, for attention blocks that read it by themselves."""
        return self.frozen + self.up @ self.down

    def forward(self, inputs: Tensor) -> Tensor:
        """Not by the whole weight: its gradient would be as large as that of the layer."""
        change = functional.linear(functional.linear(inputs, self.down), self.up)
        return functional.linear(inputs, self.frozen, self.bias) + change


class LowRankConv(nn.Conv2d):
    """A convolution of a single pixel whose weight is frozen + up · down."""

    frozen: Tensor
    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, layer: nn.Conv2d, rank: int) -> None:
        nn.Module.__init__(self)
        for name in nn.Conv2d.__constants__:
            setattr(self, name, getattr(layer, name))
        _adapt(self, layer, rank)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight as a whole."""
        return self.frozen + (self.up @ self.down)[:, :, None, None]

    def forward(self, inputs: Tensor) -> Tensor:
        """Through the frozen weight, and beside it through the two thin ones."""
        down, up = self.down[:, :, None, None], self.up[:, :, None, None]
        change = functional.conv2d(functional.conv2d(inputs, down, stride=self.stride), up)
        return functional.conv2d(inputs, self.frozen, self.bias, self.stride) + change


def _adapt(adapted: LowRankLinear | LowRankConv, layer: Layer, rank: int) -> None:
    outputs, inputs = layer.weight.shape[:2]
    rank = min(rank, inputs, outputs)
    adapted.register_buffer("frozen", layer.weight.detach(), persistent=False)
    adapted.register_buffer("bias", None if layer.bias is None else layer.bias.detach(), persistent=False)
    adapted.down = nn.Parameter(layer.weight.new_zeros(rank, inputs))
    adapted.up = nn.Parameter(layer.weight.new_zeros(outputs, rank))


def adapt(network: nn.Module, rank: int) -> int:
    """Replace every layer that can be adapted; return how many there were."""
    return _replace(network, lambda layer: _adapted(layer, rank))


def merge(network: nn.Module) -> None:
    """Turn adapted layers into plain ones with the same output."""
    _replace(network, _merged)


def draw(network: nn.Module, rng: np.random.Generator) -> None:
    """Draw every A from U(-b, b) with b = 4 / √inputs, in the order of the network."""
    for layer in network.modules():
        if isinstance(layer, LowRankLinear | LowRankConv):
            fill_uniform(layer.down, _SCALE / math.sqrt(layer.down.shape[1]), rng)


def _replace(network: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> int:
    found = [(name, new) for name, layer in network.named_modules() if (new := change(layer)) is not None]
    for name, new in found:
        network.set_submodule(name, new)
    return len(found)


def _adapted(layer: nn.Module, rank: int) -> nn.Module | None:
    # Not a subclass of either: it may compute something else.
    if type(layer) is nn.Linear:
        return LowRankLinear(layer, rank)
    if type(layer) is nn.Conv2d and layer.kernel_size == (1, 1) and layer.groups == 1 and layer.padding in ((0, 0), 0):
        return LowRankConv(layer, rank)
    return None


def _merged(layer: nn.Module) -> nn.Module | None:
    if isinstance(layer, LowRankLinear):
        plain: Layer = nn.Linear(layer.in_features, layer.out_features, device="meta")
    elif isinstance(layer, LowRankConv):
        plain = nn.Conv2d(layer.in_channels, layer.out_channels, 1, (layer.stride[0], layer.stride[1]), device="meta")
    else:
        return None
    plain.weight = nn.Parameter(layer.weight.detach())
    plain.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach())
    return plain
