"""The last step at a site, if the run asks for it: a model of its own, made from the group's.

A fifth of the training samples is set aside for as long as the run lasts: no group model ever trains on them, so they
can tell which model fits the site without flattering the group's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from client.data import SiteData
from client.data.split import split
from client.training import TEST_BATCH, TrainingDiverged, evaluate, train
from common.config import SiteSettings, TrainSettings
from common.models import get_state, set_state
from common.randomness import derive_seed
from common.state import State

SHARE = 0.2
# With fewer samples a validation part says nothing.
LEAST = 5
# Epochs without getting better on the validation part after which training ends.
PATIENCE = 10
# By how many validation samples a model trained alone must do better than the group's to be kept: one may be chance.
LEAD = 2


@dataclass(frozen=True)
class Candidate:
    """A model that a site may keep: how it came about, and how many of the validation part it names right."""

    kept: str
    epochs: int
    right: int
    loss: float


def set_aside(site: SiteData, seed: int) -> tuple[SiteData, SiteData | None]:
    """Return the site as it trains, and as it validates: `train` holds the one part and the other.

    The same part in every round. A site with too few samples, or whose samples all belong together, has none.
    """
    if len(site.train) < LEAST:
        return site, None
    lots = np.array([derive_seed(seed, f"validation {site.samples.name(int(row))}", site.name) for row in site.train])
    groups = None if site.samples.groups is None else site.samples.groups[site.train]
    hints = np.full(len(site.train), -1, np.int8)
    fitted, held = split(site.train_labels, groups, hints, SHARE, lots.astype(np.float64))
    if not len(held):
        return site, None
    return replace(site, train=site.train[fitted]), replace(site, train=site.train[held])


class Personalisation:
    """Makes and compares the models that one site may keep.

    Parameters
    ----------
    model
        The network; its weights are overwritten.
    site
        With all of its training samples.
    settings, rounds
        Of the run; training alone takes no more epochs than the run's rounds had.
    device
        Where to train.
    """

    def __init__(
        self, model: nn.Module, site: SiteData, settings: SiteSettings, rounds: int, device: torch.device
    ) -> None:
        self._model = model
        self._site = site
        self._fitted, self._held = set_aside(site, site.split_seed)
        self._seed = settings.seed
        self._settings: TrainSettings = settings.train.model_copy(update={"epochs": 1})
        self._most = max(rounds * settings.train.epochs, 1)
        self._device = device

    def choose(self, group: State, initial: State | None) -> tuple[str, State]:
        """Return what is kept, "group", "finetuned" or "local", and its weights.

        `initial` are the weights to train alone from; None: that is not tried. A model trained alone is kept only with
        a clear lead on the validation part, which is small at most sites: the group's has seen more. What wins is then
        trained again on all training samples for as many epochs.
        """
        if self._held is None:
            return "group", group
        # The group's model is what fine-tuning begins with, so it is among what that gives.
        best = self._early_stopped("finetuned", group)
        if initial is not None:
            alone = self._early_stopped("local", initial)
            best = alone if alone.right >= best.right + LEAD else best
        if not best.epochs:
            # Nothing was gained by training: also from scratch, if even that start were the best.
            return "group", group
        set_state(self._model, initial if best.kept == "local" and initial is not None else group)
        try:
            for epoch in range(best.epochs):
                self._train(self._site, best.kept, epoch)
        except TrainingDiverged:
            return "group", group
        return best.kept, get_state(self._model)

    def _early_stopped(self, kept: str, start: State) -> Candidate:
        """Train on the fitted part as long as it does better on the other; the best epoch counts, 0 included.

        Better is more named right, then a smaller loss: the loss alone rises long before accuracy ends to grow.
        """
        set_state(self._model, start)
        best = self._judged(kept, 0)
        for epoch in range(self._most):
            try:
                self._train(self._fitted, kept, epoch)
                now = self._judged(kept, epoch + 1)
            except TrainingDiverged:
                break
            if (now.right, -now.loss) > (best.right, -best.loss):
                best = now
            elif epoch + 1 - best.epochs >= PATIENCE:
                break
        return best

    def _judged(self, kept: str, epochs: int) -> Candidate:
        assert self._held is not None
        labels = self._held.train_labels
        statistics = evaluate(
            self._model,
            self._held.train_inputs(),
            labels,
            classes=len(self._site.classes),
            batch_size=TEST_BATCH,
            device=self._device,
        )
        return Candidate(kept, epochs, int(np.trace(statistics.confusion)), statistics.loss_sum / len(labels))

    def _train(self, site: SiteData, kept: str, epoch: int) -> None:
        train(
            self._model,
            site.train_inputs(),
            site.train_labels,
            self._settings,
            round_number=1,
            rounds=1,
            seed=derive_seed(self._seed, f"personal {kept}", site.name, epoch),
            device=self._device,
        )
