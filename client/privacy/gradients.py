"""What each sample by itself would change in a network: the sum of such gradients, none longer than a bound.

By torch's own function transforms and not by opacus, whose hooks forbid layers that work in place, as ours do; what
opacus gives where it can is the same to 1e-7.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from client.policy.rules import Declined

# Samples whose gradients are held at once: of a network with millions of weights each takes tens of megabytes.
_HELD = 2**26


def check_private(model: nn.Module) -> None:
    """Raise unless what a network makes of a sample depends on that sample alone; it is ready to be trained."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise Declined(
                f"policy.privacy: batch norm ({name}) mixes the samples of a batch, so that none can be hidden; "
                "take a network without it, such as head, lenet5, resnet9-gn or resnet18-gn"
            )


def clipped_sum(
    model: nn.Module, inputs: Tensor, labels: Tensor, clip: float, frozen: Collection[str] = ()
) -> dict[str, Tensor]:
    """Σ min(1, clip / |g_i|) g_i over the samples, by the name of the parameter; g_i is of the cross-entropy.

    A sample whose g_i is not finite takes no part.
    """
    named = dict(model.named_parameters())
    trained = {name: one.detach() for name, one in named.items() if one.requires_grad and name not in frozen}
    rest = {name: one.detach() for name, one in named.items() if name not in trained}

    def loss(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(model, {**rest, **parameters}, (sample[None],))
        return functional.cross_entropy(cast(Tensor, scores), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    total = {name: torch.zeros_like(one) for name, one in trained.items()}
    held = max(1, _HELD // max(sum(one.numel() for one in trained.values()), 1))
    for start in range(0, len(inputs), held):
        part = slice(start, start + held)
        found: dict[str, Tensor] = each(trained, inputs[part], labels[part])
        squares = torch.stack([one.double().flatten(1).square().sum(dim=1) for one in found.values()]).sum(dim=0)
        factor = (clip / squares.sqrt().clamp_min(1e-300)).clamp_max(1.0)
        # Weights of a hostile server's may overflow for some samples alone: those take no part, or they would be seen
        # however loud the noise.
        factor = torch.where(squares.isfinite(), factor, 0.0).float()
        for name, one in found.items():
            total[name] += torch.einsum("n,n...->...", factor, one.nan_to_num(0.0, 0.0, 0.0))
    return total
