"""The site's half of a method. As it stands here it is FedAvg's: train what was sent, send it back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.data import SiteData
from client.training import Objective, Training, TrainingResult, deal, plain, prepare, seeded
from common import wire
from common.config import SiteSettings
from common.methods import Agreement
from common.models import Head, InvalidState, get_state, set_state
from common.networks import build_for
from common.randomness import derive_seed
from common.schedule import learning_rate
from common.state import Extras, State
from common.tensor_names import is_parameter


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
    class_samples
        Least training samples of a class that the site tells anything of.
    training
        How the network learns.
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
    class_samples: int = 1
    training: Training = field(default=Training(), repr=False)

    @property
    def told_counts(self) -> NDArray[np.int64]:
        """Training samples of each class; 0 for one that is too small to be told of."""
        return self.site.told_counts(self.class_samples)

    def load(self, state: State) -> nn.Module:
        """Give the network these weights."""
        try:
            set_state(self.network, state)
        except InvalidState as error:
            raise wire.WireError(f"the server's model does not fit {self.settings.train.model}: {error}") from None
        return self.network

    def fit(
        self,
        *,
        objective: Objective = plain,
        correct: Callable[[], None] | None = None,
        frozen: Collection[str] = (),
        most_steps: int | None = None,
        rows: NDArray[np.int64] | None = None,
        purpose: str = "training",
        **changes: object,
    ) -> TrainingResult:
        """Train the network, as it is now, on the site's training samples as the settings say, but for `changes`.

        `rows` are the places, among the training samples, of those to train on; None: all. `purpose` tells the order of
        one training from that of another in the same round.
        """
        inputs, labels = self.site.train_inputs(), self.site.train_labels
        result = self.training.train(
            self.network,
            inputs if rows is None else inputs[rows],
            labels if rows is None else labels[rows],
            self.settings.train.model_copy(update=changes),
            round_number=self.round_number,
            rounds=self.rounds,
            seed=self.seed(purpose),
            device=self.device,
            objective=objective,
            correct=correct,
            frozen=frozen,
            most_steps=most_steps,
        )
        # Of the site's own samples, whatever it was trained with: the mean over the sites is that of all samples.
        self.training.measure(self.network, inputs)
        return result

    @contextmanager
    def epochs(self, purpose: str = "training") -> Iterator[Iterator[list[Callable[[], Tensor]]]]:
        """The batches of the same training, epoch by epoch, for a method that takes its own steps.

        Each gives, when called, its mean loss under the network as it is then; what a network drops at random is fixed
        by the seed as long as the context is entered.
        """
        with seeded(self.seed(purpose), self.device):
            yield self._epochs(purpose)

    def _epochs(self, purpose: str) -> Iterator[list[Callable[[], Tensor]]]:
        inputs, labels, train = self.site.train_inputs(), self.site.train_labels, self.settings.train
        prepare(self.network, train, self.device)
        for dealt in deal(inputs, labels, train, seed=self.seed(purpose), device=self.device):
            yield [partial(lambda batch: plain(self.network, *batch()), batch) for batch in dealt]
        self.training.measure(self.network, inputs)

    def seed(self, purpose: str) -> int:
        """Of this site, round and purpose alone."""
        return derive_seed(self.settings.seed, purpose, self.site.name, self.round_number)

    @property
    def samples(self) -> int:
        """How many training samples the site has."""
        return len(self.site.train)

    @property
    def rate(self) -> float:
        """The learning rate of the round."""
        return learning_rate(self.settings.train, self.round_number, self.rounds)

    def start(self) -> State:
        """The weights that the seed gives to every method and site; what is measured is the site's own."""
        network = build_for(self.settings, self.settings.seed)
        self.training.measure(network, self.site.train_inputs())
        return get_state(network)

    def as_trained(self, state: State) -> State:
        """A state after training from what came, with the centre under which a head was trained.

        What travels has the centre that was measured afterwards, for the mean over the sites; a model that is used as
        it is needs the other.
        """
        if not isinstance(self.network, Head):
            return state
        return {name: array if is_parameter(name) else self.received.get(name, array) for name, array in state.items()}

    def state(self) -> State:
        """The network as it is now, in arrays that later training leaves alone."""
        return {name: array.copy() for name, array in get_state(self.network).items()}


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

    # Whether its questions are about the data more than about a model: classes that are too small are then left out.
    describes = False

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement

    def served(self, visit: Visit) -> State:
        """Return the model that the site is tested with, and keeps in the end: what came, with what is its own."""
        if self.agreement.shared is None:
            return visit.received
        return (visit.memory or visit.start()) | visit.received

    def common(self, visit: Visit) -> State | None:
        """Return the model that the site shares with others, to be tested beside its own; None: that is the same one,
        or there is none."""
        return None

    def held(self, visit: Visit, trained: Trained) -> State:
        """Return the model that the site holds right after its training."""
        own = {} if self.agreement.shared is None else trained.memory or {}
        return own | visit.as_trained(trained.state)

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
        shared = self.agreement.travelling(state, visit.settings)
        own = {name: array for name, array in state.items() if name not in shared}
        return Trained(
            shared, result.samples, result.loss, extras or {}, own if self.agreement.shared is not None else None
        )
