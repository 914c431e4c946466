"""DP-SGD: in every step each sample counts up to a bound, and noise hides any one of them (Abadi et al. 2016).

w ← w − η v, v ← m v + λ w + (Σ_i min(1, C / |g_i|) g_i + σ C N(0, 1)) / (q n), over samples that each take part with
probability q; n is the number of samples that the site has told, and not the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.head_training import Descent, clipped_gradients, parameters_of, take_step
from client.policy.rules import Declined
from client.privacy.accountant import Release
from client.privacy.gradients import check_private, clipped_sum
from client.privacy.noise import Source, blurred
from client.training import Inputs, Objective, TrainingResult, in_numpy, normalise, plain, prepare, seeded, tensor
from common.config import TrainSettings
from common.models import Head
from common.privacy import PrivacySettings
from common.schedule import learning_rate

# Lengths are computed in floating point: a bound that is a touch lower holds all the same.
_TOUCH = 1 - 1e-3


class _Learner(Protocol):
    """A network that is about to learn: its weights, to be stepped along, and the sums of clipped gradients."""

    weights: list[NDArray[np.float32]]

    def sums(self, chosen: NDArray[np.int64]) -> list[NDArray[np.float32]]:
        """Of the chosen samples, one array for each of the weights as they are now."""

    def close(self) -> None:
        """Leave the network with the weights as they are now."""


class _Head:
    """A head in NumPy; the weights are its own memory."""

    def __init__(self, model: Head, inputs: Inputs, labels: NDArray[np.int64], clip: float) -> None:
        self._layers, self._rows, self._prior = in_numpy(model, inputs)
        self._labels, self._clip = labels, clip
        self.weights = parameters_of(self._layers)

    def sums(self, chosen: NDArray[np.int64]) -> list[NDArray[np.float32]]:
        return clipped_gradients(self._layers, self._rows[chosen], self._labels[chosen], self._prior, self._clip)

    def close(self) -> None:
        pass


class _Network:
    """Any other network, on its device."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, labels: NDArray[np.int64], clip: float, frozen: Collection[str]
    ) -> None:
        self._model, self._clip, self._frozen = model, clip, frozen
        self._named = {n: one for n, one in model.named_parameters() if one.requires_grad and n not in frozen}
        self._values, self._labels = tensor(inputs), tensor(labels)
        self.weights = [one.detach().cpu().numpy().copy() for one in self._named.values()]

    def sums(self, chosen: NDArray[np.int64]) -> list[NDArray[np.float32]]:
        self.close()
        picked, device = torch.from_numpy(chosen), next(iter(self._named.values())).device
        inputs, labels = normalise(self._values[picked].to(device)), self._labels[picked].to(device)
        found = clipped_sum(self._model, inputs, labels, self._clip, self._frozen)
        return [found[name].cpu().numpy() for name in self._named]

    def close(self) -> None:
        with torch.no_grad():
            for one, array in zip(self._named.values(), self.weights, strict=True):
                one.copy_(torch.from_numpy(array))


@dataclass(frozen=True)
class PrivateTraining:
    """Takes the place of plain training at a site with a budget.

    Attributes
    ----------
    settings, sigma
        The bound, the rate, and the noise of a step.
    samples
        Training samples as the site has told them.
    centre : float32[d]
        Mean embedding as the site has told it; empty: it has told none.
    source
        Of noise, and of who takes part.
    spend
        Pays for steps before the first is taken.
    """

    settings: PrivacySettings
    sigma: float
    samples: int
    centre: NDArray[np.float32]
    source: Source = field(repr=False)
    spend: Callable[[Release], None] = field(repr=False)

    def train(
        self,
        model: nn.Module,
        inputs: Inputs,
        labels: NDArray[np.int64],
        settings: TrainSettings,
        *,
        round_number: int,
        rounds: int,
        seed: int,
        device: torch.device,
        objective: Objective = plain,
        correct: Callable[[], None] | None = None,
        frozen: Collection[str] = (),
        most_steps: int | None = None,
    ) -> TrainingResult:
        """Train in place, as `client.training.train` does; the loss is not told."""
        if objective is not plain or correct is not None or most_steps is not None:
            raise Declined("policy.privacy: this way of training has no private form")
        steps = settings.epochs * max(1, round(1 / self.settings.rate))
        clip = self.settings.clip * _TOUCH
        learner: _Learner
        if isinstance(model, Head) and not frozen:
            learner = _Head(model, inputs, labels, clip)
        else:
            prepare(model, settings, device)
            check_private(model)
            learner = _Network(model, inputs, labels, clip, frozen)
        descent = Descent(learning_rate(settings, round_number, rounds), settings.momentum, settings.weight_decay)
        self.spend(Release(self.sigma, self.settings.rate, steps))
        velocity: list[NDArray[np.float32]] = []
        with seeded(seed, device):
            for _ in range(steps):
                gradients = [self._hidden(one) for one in learner.sums(self._drawn(len(labels)))]
                take_step(learner.weights, gradients, descent, velocity)
        learner.close()
        return TrainingResult(self.samples, math.nan, steps)

    def measure(self, model: nn.Module, inputs: Inputs) -> None:
        """Give a network that centres what it reads the centre that the site has told."""
        if isinstance(model, Head) and len(self.centre):
            model.centred.running_mean.copy_(torch.from_numpy(self.centre))

    def _drawn(self, count: int) -> NDArray[np.int64]:
        """Places of those who take part in a step: each by a lot of its own."""
        if self.settings.rate == 1:
            return np.arange(count)
        return np.flatnonzero(self.source.uniform(count) <= self.settings.rate)

    def _hidden(self, total: NDArray[np.float32]) -> NDArray[np.float32]:
        noisy = blurred(total, self.sigma * self.settings.clip, self.source)
        found: NDArray[np.float32] = (noisy / (self.settings.rate * self.samples)).astype(np.float32)
        return found
