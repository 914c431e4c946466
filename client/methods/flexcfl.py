"""FlexCFL at a site: a short training from the common start, and a look at its own labels in every round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client.methods.method import SiteMethod, Trained, Visit
from common.methods.flexcfl import COLD_START, LABELS, SHIFT, START, Settings
from common.schedule import learning_rate
from common.state import Extras


class ColdStart(SiteMethod):
    """Plain training; beside it one bit: whether the labels have shifted since the site's last cold start."""

    def train(self, visit: Visit) -> Trained:
        """Train, and say whether the labels have shifted."""
        # Both without the classes that are too small to be told of, as they are on the site's card.
        apart = label_shift(visit.extras[LABELS]["counts"], visit.told_counts)
        shifted = np.array(apart > visit.settings.of(Settings).shift, np.int64)
        return replace(super().train(visit), extras={SHIFT: {"shifted": shifted}})

    def answer(self, question: str, visit: Visit) -> Extras:
        """Train the common start for some steps, always at the rate of the first round."""
        visit.load(visit.extras[START])
        steps, train = visit.settings.of(Settings).steps, visit.settings.train
        rate = learning_rate(train, 1, visit.rounds)
        # Every epoch has a step, so that so many are enough.
        visit.fit(epochs=steps, most_steps=steps, lr=rate, schedule="constant", purpose="cold start")
        return {COLD_START: visit.state(), LABELS: {"counts": visit.told_counts}}


def label_shift(before: NDArray[np.int64], now: NDArray[np.int64]) -> float:
    """Total variation between the label shares of then and now; 0 if there is nothing to compare."""
    if len(before) != len(now) or not before.sum() or not now.sum():
        return 0.0
    return float(np.abs(before / before.sum() - now / now.sum()).sum() / 2)


SITE = ColdStart
