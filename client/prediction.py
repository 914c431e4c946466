"""Using a model that a run left behind: on images, just as the site's own test split was evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client.data.samples import Fault, ImageSamples, Undecodable
from client.training import default_device, log_probabilities
from common.config import SettingsError
from common.kept_model import ModelCard, load_model
from common.models import InvalidState, build, set_state

_BATCH = 128


@dataclass(frozen=True)
class Prediction:
    """The probability of every class of the card, float64[C], for one image."""

    image: str
    probabilities: NDArray[np.float64]

    @property
    def label(self) -> int:
        """Index of the most likely class."""
        return int(self.probabilities.argmax())


def open_model(path: Path) -> tuple[nn.Module, ModelCard]:
    """Build the network of a model file with its weights, or raise `SettingsError`."""
    state, card = load_model(path)
    try:
        model = build(
            card.network,
            classes=len(card.classes),
            channels=card.channels,
            image_size=card.image_size,
            seed=None,
        )
        set_state(model, state)
    except (InvalidState, ValueError) as error:
        raise SettingsError(f"the weights in {path} are not those of its card: {error}") from None
    model.eval()
    return model, card


def predict(model: nn.Module, card: ModelCard, samples: ImageSamples) -> Iterator[Prediction | Fault]:
    """Yield for each image, in order, what the model says, or why the image cannot be read."""
    device = default_device()
    for start in range(0, len(samples), _BATCH):
        positions = range(start, min(start + _BATCH, len(samples)))
        outcomes = list(samples.attempts(positions, card.image_size, card.channels))
        readable = [outcome for outcome in outcomes if not isinstance(outcome, Undecodable)]
        scores: list[NDArray[np.float64]] = []
        if readable:
            pixels = np.stack(readable)
            found = log_probabilities(model, pixels, classes=len(card.classes), batch_size=_BATCH, device=device)
            scores = list(found.exp().numpy())
        for position, outcome in zip(positions, outcomes, strict=True):
            if isinstance(outcome, Undecodable):
                yield Fault(outcome.name, outcome.reason)
            else:
                yield Prediction(samples.name(position), scores.pop(0))
