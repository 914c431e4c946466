"""The site's half of a method. As it stands here it is FedAvg's: train what was sent, send it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.data import SiteData
from client.training import Objective, TrainingResult, plain, train
from common import wire
from common.config import SiteSettings
from common.methods import Agreement
from common.models import InvalidState, get_state, set_state
from common.networks import build_for
from common.randomness import derive_seed
from common.state import Extras, State


@dataclass(frozen=True)
class Visit:
    """One task at one site: what came, and what is there.

    Attributes
    ----------
    network
        The network of the run; its weights are overwritten.
    received
        The tensors that travel, as the server sent them.
    extras
        What came beside them, held against what the method declares.
    memory
        What the site remembered after its last round that counted; empty: nothing.
    site
        The site's data.
    settings, round_number, rounds, group
        Of the run, the round and the site.
    device
        Where to train.
    embedded
        Makes the embeddings of the site's training samples, float32[n, d], for a method that asks for them.
    """

    network: nn.Module
    received: State
    extras: Extras
    memory: State
    site: SiteData
    settings: SiteSettings
    round_number: int
    rounds: int
    group: int
    device: torch.device
    embedded: Callable[[], NDArray[np.float32]] = field(default=lambda: np.empty((0, 0), np.float32))

    def load(self, state: State) -> nn.Module:
        """Give the network these weights."""
        try:
            set_state(self.network, state)
        except InvalidState as error:
            raise wire.WireError(f"the server's model does not fit {self.settings.train.model}: {error}") from None
        return self.network

    def fit(self, *, objective: Objective = plain, correct: Callable[[], None] | None = None) -> TrainingResult:
        """Train the network, as it is now, on the site's training samples as the settings say."""
        return train(
            self.network,
            self.site.train_inputs(),
            self.site.train_labels,
            self.settings.train,
            round_number=self.round_number,
            rounds=self.rounds,
            seed=derive_seed(self.settings.seed, "training", self.site.name, self.round_number),
            device=self.device,
            objective=objective,
            correct=correct,
        )

    def start(self) -> State:
        """The weights that the seed gives to every method and site."""
        return get_state(build_for(self.settings, self.settings.seed))


@dataclass(frozen=True)
class Trained:
    """What a site made of a round: what travels back, and what it remembers until its next one (None: nothing)."""

    state: State
    samples: int
    loss: float
    extras: Extras = field(default_factory=dict)
    memory: State | None = None


class SiteMethod:
    """What a site does with what it is sent. A method overrides what it does otherwise than FedAvg.

    Tensors that the method declares as personal never leave the site: they are joined to what arrives, trained along
    and remembered.
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement

    def served(self, visit: Visit) -> State:
        """Return the model that the site is tested with, and keeps in the end: what came, with what is its own."""
        if self.agreement.shared is None:
            return visit.received
        return (visit.memory or visit.start()) | visit.received

    def train(self, visit: Visit) -> Trained:
        """Train on the site's own data."""
        visit.load(self.served(visit))
        return self.trained(visit, visit.fit())

    def answer(self, question: str, visit: Visit) -> Extras:
        """Answer a question that the method declares."""
        raise NotImplementedError(f"{self.agreement.rule} declares the question {question!r} and does not answer it")

    def trained(self, visit: Visit, result: TrainingResult, extras: Extras | None = None) -> Trained:
        """Divide the network, as it is now, into what travels and what is remembered."""
        state = get_state(visit.network)
        travels = set(self.agreement.travels(list(state)))
        own = {name: array for name, array in state.items() if name not in travels}
        shared = {name: array for name, array in state.items() if name in travels}
        return Trained(
            shared, result.samples, result.loss, extras or {}, own if self.agreement.shared is not None else None
        )
