"""IFCA at a site: of all groups' models, train the one with the least loss."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client.methods.method import SiteMethod, Trained, Visit
from client.training import TEST_BATCH, TrainingDiverged, evaluate
from common.methods.ifca import CHOICE, LOSSES, OTHERS
from common.state import Extras, State


class LeastLoss(SiteMethod):
    """Choose among the models by the mean loss on the site's training samples; on a tie the lowest group."""

    def train(self, visit: Visit) -> Trained:
        """Train the model that fits best."""
        models = _offered(visit.extras) | {visit.group: visit.received}
        groups = sorted(models)
        choice = groups[int(_losses([models[group] for group in groups], visit).argmin())]
        trained = super().train(replace(visit, received=models[choice]))
        return replace(trained, extras={CHOICE: {"group": np.array(choice, np.int64)}})

    def answer(self, question: str, visit: Visit) -> Extras:
        """Tell the losses under the starts, in order."""
        models = _offered(visit.extras)
        losses = _losses([models[number] for number in sorted(models)], visit)
        return {LOSSES: {"values": np.minimum(losses, np.finfo(np.float64).max)}}


def _offered(extras: Extras) -> dict[int, State]:
    return {int(name.removeprefix(f"{OTHERS}.")): model for name, model in extras.items()}


def _losses(models: list[State], visit: Visit) -> NDArray[np.float64]:
    """Mean loss of each model on the site's training samples; infinite where it is not a number."""
    values = np.full(len(models), np.inf)
    for place, state in enumerate(models):
        with suppress(TrainingDiverged):
            statistics = evaluate(
                visit.load(state),
                visit.site.train_inputs(),
                visit.site.train_labels,
                classes=len(visit.site.classes),
                batch_size=TEST_BATCH,
                device=visit.device,
            )
            values[place] = statistics.loss_sum / len(visit.site.train)
    return values


SITE = LeastLoss
