"""FedProx at a site: plain empirical risk with a rein."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client.methods.method import SiteMethod, Trained, Visit
from client.training import plain
from common.methods.fedprox import Settings


class Prox:
    """F(w) + mu / 2 |w - w_received|^2 over the parameters, batch norm's statistics left aside (FedProx, equation 2).

    Parameters
    ----------
    received
        The model as the server sent it; its parameters are remembered.
    mu
        How strong the rein is.
    """

    def __init__(self, received: nn.Module, mu: float) -> None:
        self._mu = mu
        self._start = [parameter.detach().clone() for parameter in received.parameters()]

    def __call__(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch plus the proximal term."""
        loss = plain(model, inputs, labels)
        return loss if self._mu == 0 else loss + self.pull(model)

    def pull(self, model: nn.Module) -> Tensor:
        """The proximal term alone."""
        parameters = list(model.parameters())
        # The model may have gone to a GPU since it was received; after the first step this copies nothing.
        self._start = [start.to(now.device) for start, now in zip(self._start, parameters, strict=True)]
        apart = [torch.sum((now - start) ** 2) for start, now in zip(self._start, parameters, strict=True)]
        return self._mu / 2 * torch.stack(apart).sum()


class FedProx(SiteMethod):
    """Train near what was received."""

    def train(self, visit: Visit) -> Trained:
        """Train with the proximal term."""
        network = visit.load(self.served(visit))
        return self.trained(visit, visit.fit(objective=Prox(network, visit.settings.of(Settings).mu)))


SITE = FedProx
