"""Makes what a site may keep beside its group's model, and judges it by cross-validation among its training samples.

Nothing is set aside while the run lasts: the group's model trains on all that the site has. What the site makes is
judged fold by fold: trained on the other folds, and asked for the probability of each sample that it has not trained
on. That of a model trained alone is honest. The group's model has seen all samples, and what is fine-tuned begins with
it; so the group's is flattered most, then the fine-tuned one, and a site leaves its group's model only for what is
better in spite of that.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.data import SiteData
from client.personal.blending import clearly_better, group_weight, likelihood
from client.personal.folds import deal_folds, judgeable, say_of_each
from client.training import TEST_BATCH, TrainingDiverged, log_probabilities, train
from common.blend import Blend
from common.config import SiteSettings, TrainSettings
from common.models import get_state, set_prior, set_state
from common.prior import class_shares
from common.randomness import derive_seed
from common.state import State

FOLDS = 5
# Fine-tuning takes so many epochs, the rate falling to 0: with a constant one a small site ends where its last batch
# pulled it.
EPOCHS = 6
# A blend is chosen as if there were two samples more that only the group's model explains, and one more that only the
# site's own does. Decided on digits (benchmarks/personalise.py).
FOR_GROUP, FOR_OWN = 2.0, 1.0
# Less of one of the two than this is not worth a second network.
_LEAST_SHARE = 0.01
_LEAST_CHANCE = 1e-12

Vector = NDArray[np.float64]
Inputs = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True)
class Kept:
    """What a site keeps: one model, or the group's and its own with the weight of the group's."""

    kept: Literal["group", "finetuned", "local", "blend"]
    state: State
    own: State | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class _Candidate:
    """A model of the site's own: how it is made, and the probabilities it gives to the true classes, float64[n]."""

    kept: Literal["finetuned", "local"]
    train: Callable[[NDArray[np.intp]], None]
    chances: Vector


class Personalisation:
    """Makes and judges the models that one site may keep.

    Parameters
    ----------
    model
        The network; its weights are overwritten.
    site
        Its data as they are at the end of the run.
    settings, rounds
        Of the run; training alone takes as many rounds as the run had, just as the method Local does.
    device
        Where to train.
    """

    def __init__(
        self, model: nn.Module, site: SiteData, settings: SiteSettings, rounds: int, device: torch.device
    ) -> None:
        self._model = model
        self._name, self._settings, self._rounds, self._device = site.name, settings, rounds, device
        self._inputs: Inputs = site.train_inputs()
        self._labels, self._classes = site.train_labels, len(site.classes)
        groups = None if site.samples.groups is None else site.samples.groups[site.train]
        lots = [derive_seed(settings.seed, f"fold {site.samples.name(int(row))}", site.name) for row in site.train]
        self._folds = deal_folds(self._labels, groups, np.array(lots, np.float64), FOLDS)
        self._judged = judgeable(self._labels, self._folds)
        self._say = say_of_each(groups, self._judged)

    def choose(self, group: State, start: Callable[[], State]) -> Kept:
        """Return what is kept by the run's rule.

        `start` gives the weights to train alone from. Where no sample can be judged, because there is one only or none
        of its class in another fold, the group's model is kept.
        """
        # What came may lie in the network's own memory, which is overwritten.
        group = {name: array.copy() for name, array in group.items()}
        as_it_is = Kept("group", group)
        if not self._judged.any():
            return as_it_is
        self._load(group, self._labels)
        chances = self._chances(np.flatnonzero(self._judged))
        mode = self._settings.personalise
        candidates = [self._candidate("finetuned", self._finetuning(group))]
        if mode != "finetune":
            candidates.append(self._candidate("local", self._training_alone(start())))
        there = [candidate for candidate in candidates if candidate is not None]
        try:
            return self._blended(group, chances, there) if mode == "blend" else self._selected(group, chances, there)
        except TrainingDiverged:
            return as_it_is

    def network(self, kept: Kept) -> nn.Module:
        """Return what is kept as a network, which expects the site's class shares if the run's networks do."""
        self._load(kept.state, self._labels)
        if kept.own is None:
            return self._model
        group = deepcopy(self._model)
        self._load(kept.own, self._labels)
        return Blend(group, self._model, kept.weight)

    # --- the rules ---------------------------------------------------------------------------------------------

    def _selected(self, group: State, chances: Vector, candidates: list[_Candidate]) -> Kept:
        """Keep the group's model unless another one's log loss is clearly less; the later one must beat the earlier."""
        best: _Candidate | None = None
        for candidate in candidates:
            losses = -np.log(chances if best is None else best.chances)
            if clearly_better(losses, -np.log(candidate.chances), self._say):
                best = candidate
        return Kept("group", group) if best is None else Kept(best.kept, self._made(best))

    def _blended(self, group: State, chances: Vector, candidates: list[_Candidate]) -> Kept:
        """Keep the likeliest blend of the group's model with one of the site's own."""

        def weighed(candidate: _Candidate) -> tuple[float, float]:
            pair = chances, candidate.chances, self._say
            weight = group_weight(*pair, for_group=FOR_GROUP, for_own=FOR_OWN)
            return likelihood(weight, *pair, for_group=FOR_GROUP, for_own=FOR_OWN), weight

        if not candidates:
            return Kept("group", group)
        (_, weight), best = max(((weighed(one), one) for one in candidates), key=lambda found: found[0][0])
        if weight > 1 - _LEAST_SHARE:
            return Kept("group", group)
        own = self._made(best)
        return Kept(best.kept, own) if weight < _LEAST_SHARE else Kept("blend", group, own, round(weight, 4))

    # --- models of the site's own ------------------------------------------------------------------------------

    def _finetuning(self, group: State) -> Callable[[NDArray[np.intp]], None]:
        """The group's model trained further, the rate falling to 0."""
        settings = self._settings.train.model_copy(update={"epochs": 1, "schedule": "cosine"})

        def run(rows: NDArray[np.intp]) -> None:
            self._load(group, self._labels[rows])
            for epoch in range(1, EPOCHS + 1):
                seed = derive_seed(self._settings.seed, "finetuning", self._name, epoch)
                self._train(rows, settings, epoch, EPOCHS, seed)

        return run

    def _training_alone(self, start: State) -> Callable[[NDArray[np.intp]], None]:
        """What the method Local makes of the same samples: the same start, rounds and order."""

        def run(rows: NDArray[np.intp]) -> None:
            self._load(start, self._labels[rows])
            for number in range(1, self._rounds + 1):
                seed = derive_seed(self._settings.seed, "training", self._name, number)
                self._train(rows, self._settings.train, number, self._rounds, seed)

        return run

    def _candidate(
        self, kept: Literal["finetuned", "local"], run: Callable[[NDArray[np.intp]], None]
    ) -> _Candidate | None:
        """Cross-validate a way of training; None: it diverges."""
        chances = np.empty(len(self._labels))
        try:
            for fold in np.unique(self._folds[self._judged]):
                run(np.flatnonzero(self._folds != fold))
                held = np.flatnonzero((self._folds == fold) & self._judged)
                chances[held] = self._chances(held)
        except TrainingDiverged:
            return None
        return _Candidate(kept, run, chances[self._judged])

    def _made(self, candidate: _Candidate) -> State:
        """Train a candidate on all samples."""
        candidate.train(np.arange(len(self._labels)))
        # The arrays are the network's own, which others overwrite.
        return {name: array.copy() for name, array in get_state(self._model).items()}

    def _load(self, state: State, labels: NDArray[np.int64]) -> None:
        """Give the network weights, and the class shares of what it is to train on."""
        set_state(self._model, state)
        if self._settings.train.prior == "site":
            set_prior(self._model, class_shares(np.bincount(labels, minlength=self._classes)))

    def _train(self, rows: NDArray[np.intp], settings: TrainSettings, number: int, rounds: int, seed: int) -> None:
        train(
            self._model,
            self._inputs[rows],
            self._labels[rows],
            settings,
            round_number=number,
            rounds=rounds,
            seed=seed,
            device=self._device,
        )

    def _chances(self, rows: NDArray[np.intp]) -> Vector:
        """The probability that the network, as it is now, gives to the true class of each sample."""
        scores = log_probabilities(
            self._model, self._inputs[rows], classes=self._classes, batch_size=TEST_BATCH, device=self._device
        ).numpy()
        chances: Vector = np.exp(scores[np.arange(len(rows)), self._labels[rows]])
        return np.maximum(chances, _LEAST_CHANCE)
