"""SCAFFOLD at a site: every step is corrected by what the site's gradients are known to have in excess."""

from __future__ import annotations

import numpy as np
import torch

from client.methods.method import SiteMethod, Trained, Visit
from common.local_steps import step_weight
from common.methods.scaffold import VARIATE
from common.models import get_state
from common.state import State


class Scaffold(SiteMethod):
    """y ← y − η (g_i(y) + c − c_i); c_i⁺ = c_i − c + (x − y) / (K η) (SCAFFOLD, algorithm 1, option II).

    With momentum the correction enters the gradient before it, and the weight of the steps takes the place of their
    number K: c_i⁺ is then exactly the weighted mean of the site's own gradients.
    """

    def train(self, visit: Visit) -> Trained:
        """Train with corrected gradients, and remember c_i⁺."""
        common = visit.extras[VARIATE]
        own = visit.memory or {name: np.zeros_like(array) for name, array in common.items()}
        network = visit.load(self.served(visit))
        parameters = dict(network.named_parameters())
        corrections = {name: torch.from_numpy(common[name] - own[name]).to(visit.device) for name in parameters}

        def correct() -> None:
            # A network of others may have parameters that take no part.
            reached = {name: one.grad for name, one in parameters.items() if one.grad is not None}
            torch._foreach_add_(list(reached.values()), [corrections[name] for name in reached])

        result = visit.fit(correct=correct)
        train = visit.settings.train
        reach = visit.rate * step_weight(result.steps, momentum=train.momentum)
        after = get_state(network)
        change = {name: ((visit.received[name] - after[name]) / reach - common[name]) for name in common}
        changes: State = {name: array.astype(common[name].dtype) for name, array in change.items()}
        trained = self.trained(visit, result, {VARIATE: changes})
        remembered = {name: own[name] + changes[name] for name in common}
        return Trained(trained.state, trained.samples, trained.loss, trained.extras, remembered)


SITE = Scaffold
