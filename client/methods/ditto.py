"""Ditto at a site: beside the common model one of its own, held near the common one as it came."""

from __future__ import annotations

from dataclasses import replace

from client.methods.method import SiteMethod, Trained, Visit
from common.methods.ditto import Settings
from common.state import State


class Ditto(SiteMethod):
    """v_i ← v_i − η (∇f_i(v_i) + λ (v_i − x)), with x as received; x itself is trained as FedAvg does (algorithm 1)."""

    def served(self, visit: Visit) -> State:
        """v_i, which starts as the model that the site is first sent."""
        return visit.memory or visit.received

    def common(self, visit: Visit) -> State:
        """The model of all."""
        return visit.received

    def held(self, visit: Visit, trained: Trained) -> State:
        """The site's own model."""
        return trained.memory or trained.state

    def train(self, visit: Visit) -> Trained:
        """Train the site's own model, then the common one; each has the same order of batches and its own optimiser."""
        pull = visit.settings.of(Settings).pull
        anchor = [one.detach().to(visit.device, copy=True) for one in visit.load(visit.received).parameters()]
        network = visit.load(self.served(visit))

        def correct() -> None:
            # λ (v − x) as it stands: by way of the loss it would need a graph of its own.
            for one, x in zip(network.parameters(), anchor, strict=True):
                if one.grad is not None:
                    one.grad.add_(one.detach() - x, alpha=pull)

        visit.fit(correct=correct if pull else None)
        own = visit.state()
        return replace(super().train(replace(visit, memory={})), memory=own)


SITE = Ditto
