"""FedCCFA at a site: two heads on the frozen body, then the body under the frozen head, drawn to anchors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from client.methods.method import SiteMethod, Trained, Visit
from client.training import Objective, features, plain, train
from common.methods.fedccfa import ANCHORS, BALANCED, HEAD, OWN_HEAD, PROTOTYPES, Settings
from common.models import Network, get_state, set_state
from common.state import Extras, State
from common.tensor_names import is_head


class ClassifierAlignment(SiteMethod):
    """Train a balanced head, the site's own head and the body, and tell the mean feature of each class."""

    def served(self, visit: Visit) -> State:
        """The present body under the site's own head."""
        return visit.received | visit.extras[OWN_HEAD]

    def held(self, visit: Visit, trained: Trained) -> State:
        """The trained body under the trained head."""
        return visit.as_trained(trained.state) | trained.extras[HEAD]

    def train(self, visit: Visit) -> Trained:
        """One round, in the order of the paper."""
        settings, labels = visit.settings.of(Settings), visit.site.train_labels
        network = visit.load(self.served(visit))
        inputs = features(network, visit.site.train_inputs(), device=visit.device)
        first = {name: array for name, array in visit.start().items() if is_head(name)}
        # Classes that are too small to be told of count as not held.
        counts = visit.told_counts
        rows = np.flatnonzero(counts[labels])
        rows = rows[balanced(labels[rows], settings.samples, np.random.default_rng(visit.seed("balanced samples")))]
        fair = self._head(visit, first, inputs[rows], labels[rows], settings.balanced_epochs, "balanced head")
        start = visit.extras[OWN_HEAD] if int(visit.extras[ANCHORS]["known"]) else fair
        own = self._head(visit, start, inputs, labels, settings.head_epochs, "own head")
        visit.load(visit.received | own)
        result = visit.fit(objective=self._objective(visit), frozen=set(own))
        # Of the body as it is now; classes that the site does not hold have none.
        ended = visit.state()
        visit.load(visit.as_trained(ended))
        after = features(network, visit.site.train_inputs(), device=visit.device)
        visit.load(ended)
        means = np.zeros((len(counts), after.shape[1]), np.float32)
        for label in np.flatnonzero(counts):
            means[label] = after[labels == label].mean(axis=0, dtype=np.float64)
        extras: Extras = {HEAD: own, BALANCED: fair, PROTOTYPES: {"means": means, "counts": counts}}
        trained = self.trained(visit, result, extras)
        return Trained(trained.state, trained.samples, trained.loss, trained.extras)

    def _head(
        self,
        visit: Visit,
        start: State,
        inputs: NDArray[np.float32],
        labels: NDArray[np.int64],
        epochs: int,
        purpose: str,
    ) -> State:
        """Train a head on features, which a frozen body gives once and for all; without any it stays as it is."""
        if not len(labels):
            return start
        rate = visit.settings.of(Settings).head_rate
        whole = visit.network
        assert isinstance(whole, Network)
        head = Network(nn.Identity(), inputs.shape[1], len(visit.site.classes))
        head.log_prior = whole.log_prior
        set_state(head, start)
        train(
            head,
            inputs,
            labels,
            visit.settings.train.model_copy(update={"epochs": epochs, "lr": rate, "schedule": "constant"}),
            round_number=visit.round_number,
            rounds=visit.rounds,
            seed=visit.seed(purpose),
            device=visit.device,
        )
        return {name: array.copy() for name, array in get_state(head).items()}

    def _objective(self, visit: Visit) -> Objective:
        settings, anchors = visit.settings.of(Settings), visit.extras[ANCHORS]
        strength = entropy(visit.site.class_counts) / settings.gamma
        held = np.flatnonzero(anchors["held"])
        if visit.round_number < settings.align_from or not len(held) or strength == 0:
            return plain
        means = torch.from_numpy(anchors["means"][held]).to(visit.device)
        return Alignment(means, torch.from_numpy(held).to(visit.device), settings.temperature, strength)


class Alignment:
    """CE + λ L, L = −log [exp(cos(z, a_y) / τ) / Σ_c exp(cos(z, a_c) / τ)] over the anchors that the site has.

    A sample of a class without an anchor takes no part in L.
    """

    def __init__(self, anchors: Tensor, held: Tensor, temperature: float, strength: float) -> None:
        self._anchors, self._held = anchors, held
        self._temperature, self._strength = temperature, strength

    def __call__(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        assert isinstance(model, Network)
        found = model.body(inputs)
        logits = model.classify(found)
        loss = functional.cross_entropy(logits, labels)
        places = labels[:, None] == self._held
        anchored = places.any(dim=1)
        if not anchored.any():
            return loss
        cosines = functional.cosine_similarity(found[anchored, None], self._anchors, dim=2)
        targets = places[anchored].int().argmax(dim=1)
        return loss + self._strength * functional.cross_entropy(cosines / self._temperature, targets)


def balanced(labels: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Places of as many samples of each class that is there: of the smallest class all, and never more than `most`."""
    if not len(labels):
        return np.empty(0, np.int64)
    present, counts = np.unique(labels, return_counts=True)
    each = min(most, int(counts.min()))
    chosen = [rng.choice(np.flatnonzero(labels == label), each, replace=False) for label in present]
    return np.sort(np.concatenate(chosen))


def entropy(counts: NDArray[np.int64]) -> float:
    """H of the label shares, in nats; a class that is not there adds nothing."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


SITE = ClassifierAlignment
