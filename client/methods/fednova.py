"""FedNova at a site: plain training, and the number of its steps."""

from __future__ import annotations

import numpy as np

from client.methods.method import SiteMethod, Trained, Visit
from common.methods.fednova import PROGRESS


class FedNova(SiteMethod):
    """Train as FedAvg does, and count."""

    def train(self, visit: Visit) -> Trained:
        """Train, and say how many steps that took."""
        visit.load(self.served(visit))
        result = visit.fit()
        return self.trained(visit, result, {PROGRESS: {"steps": np.array(result.steps, np.int64)}})


SITE = FedNova
