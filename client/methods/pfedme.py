"""pFedMe at a site: its own model θ is trained near w, and w is drawn after it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from client.methods.method import SiteMethod, Trained, Visit
from client.training import TrainingDiverged, TrainingResult, gradients
from common.methods.pfedme import Settings
from common.models import set_state
from common.state import State


class PFedMe(SiteMethod):
    """On each batch K steps θ ← θ − η_p (∇f(θ) + λ (θ − w)), then w ← w − η λ (w − θ) (algorithm 1).

    θ starts at the received w and goes on from one batch to the next. There is no momentum and no weight decay. Batch
    norm's statistics are those of θ's passes, for both.
    """

    def served(self, visit: Visit) -> State:
        """θ of the site's last round that counted; w, where there was none."""
        return visit.memory or visit.received

    def common(self, visit: Visit) -> State:
        """w."""
        return visit.received

    def held(self, visit: Visit, trained: Trained) -> State:
        """The site's own model."""
        return trained.memory or trained.state

    def train(self, visit: Visit) -> Trained:
        """Train θ, and w after it; θ is remembered, w is sent."""
        network, settings = visit.load(visit.received), visit.settings.of(Settings)
        own: list[Tensor] = list(network.parameters())
        w: list[Tensor] = []
        steps, mean = 0, math.nan
        with visit.epochs() as epochs:
            for losses in epochs:
                # Copied once the network is where it is trained.
                w = w or [parameter.detach().clone() for parameter in own]
                seen = torch.zeros((), dtype=torch.float64, device=visit.device)
                for batch in losses:
                    for _ in range(settings.steps):
                        loss = batch()
                        slope = gradients(loss, own)
                        with torch.no_grad():
                            step = torch._foreach_add(slope, torch._foreach_sub(own, w), alpha=settings.pull)
                            torch._foreach_sub_(own, step, alpha=settings.rate)
                        steps += 1
                    seen += loss.detach()
                    with torch.no_grad():
                        torch._foreach_sub_(w, torch._foreach_sub(w, own), alpha=visit.rate * settings.pull)
                mean = seen.item() / len(losses)
                if not math.isfinite(mean):
                    raise TrainingDiverged(f"the loss became {mean}: a lower pfedme.rate may help")
        theta = visit.state()
        names = [name for name, _ in network.named_parameters()]
        common = theta | {name: value.cpu().numpy() for name, value in zip(names, w, strict=True)}
        set_state(network, common)
        trained = self.trained(visit, TrainingResult(visit.samples, mean, steps))
        return replace(trained, memory=visit.as_trained(theta))


SITE = PFedMe
