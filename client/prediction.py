"""Using a model that a run left behind: on images or rows, just as the site's own test split was evaluated."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client.collaboration.projection import projected
from client.data.samples import Fault, ImageSamples, TableSamples, Undecodable
from client.encoder import load_encoder
from client.networks import frozen_digest, named_weights, network_with
from client.pretrained import Asker
from client.training import default_device, log_probabilities
from common.blend import Blend
from common.config import DataSettings, SettingsError
from common.encoders import embedding_width
from common.foreign import Unusable, read_toml
from common.kept_model import ModelCard, load_model
from common.low_rank import merge
from common.models import InvalidState, set_prior, set_state
from common.networks import Design, build_design, mlp_like
from common.state import State

_BATCH = 128
_PARTS = ("group.", "own.")


@dataclass(frozen=True)
class Prediction:
    """The probability of every class of the card, float64[C], for one image or row."""

    name: str
    probabilities: NDArray[np.float64]

    @property
    def label(self) -> int:
        """Index of the most likely class."""
        return int(self.probabilities.argmax())


def open_model(
    path: Path, shares: str = "own", weights: Path | None = None, *, trusted: bool = False
) -> tuple[nn.Module, ModelCard]:
    """Build the network of a model file with its weights, or raise `SettingsError`.

    `weights` is where the pretrained weights of a tuned backbone are; None: as its card says. `trusted`: a network of
    others' code may be imported.

    `shares` are those in which it expects the classes: those it carries ("own"), "uniform", or those of a file. The
    card that is returned names those and no others: an export is not to tell the site's.
    """
    state, card = load_model(path)
    if card.input == "integrated" or not card.whole:
        raise SettingsError(f"{path} cannot be used by itself: {card.note}")
    if card.network.startswith("python:") and not trusted:
        raise SettingsError(
            f"{path} is a model of the network {card.network}, which is imported from what is installed here: if you "
            "trust that package, add --trust-network"
        )
    try:
        own = card if weights is None else card.model_copy(update={"weights": str(weights)})
        model = _network(state, own) if card.blend is None else _blend(state, own, card.blend)
    except SettingsError:
        raise
    except (InvalidState, ValueError) as error:
        raise SettingsError(f"the weights in {path} are not those of its card: {error}") from None
    expected = expected_shares(card, shares)
    set_prior(model, expected)
    model.eval()
    return model, card.model_copy(update={"shares": () if expected is None else tuple(expected.tolist())})


def expected_shares(card: ModelCard, shares: str) -> NDArray[np.float64] | None:
    """The class shares that a model is to expect; None: it needs none."""
    if card.prior == "off":
        if shares != "own":
            raise SettingsError(
                "--shares is for models that were trained with train.prior = 'site': this one has learnt its shares"
            )
        return None
    if shares == "own":
        # The coordinator's copy carries none: it knows nobody's.
        return np.array(card.shares) if card.shares else None
    if shares == "uniform":
        return None
    return _read_shares(Path(shares), card.classes)


def _read_shares(path: Path, classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Read a table `class = number` (TOML); the numbers may be counts, and are scaled to sum to 1."""
    try:
        found = read_toml(path)
    except OSError as error:
        raise SettingsError(f"--shares takes own, uniform or a file; {path} cannot be read: {error.strerror}") from None
    except Unusable as error:
        raise SettingsError(
            f"{path} is no table of shares: {error}; write a line CLASS = NUMBER for each class"
        ) from None
    if set(found) != set(classes):
        raise SettingsError(f"{path} must name exactly the classes {', '.join(classes)}")
    values = [found[name] for name in classes]
    if not all(type(value) in (int, float) and 0 < value < math.inf for value in values):
        raise SettingsError(f"{path}: shares are numbers above 0; a class that may not occur gets a small one")
    numbers = np.array(values, np.float64)
    shares: NDArray[np.float64] = numbers / numbers.sum()
    return shares


def _blend(state: State, card: ModelCard, weight: float) -> nn.Module:
    group, own = (
        _network({name.removeprefix(part): array for name, array in state.items() if name.startswith(part)}, card)
        for part in _PARTS
    )
    if strange := [name for name in state if not name.startswith(_PARTS)]:
        raise InvalidState(f"a blend has no {', '.join(strange)}")
    return Blend(group, own, weight)


def _network(state: State, card: ModelCard) -> nn.Module:
    features = None if card.table is None else card.table.width
    if card.encoder is not None:
        features = card.projection or embedding_width(card.encoder, DataSettings())
    if card.network == "mlp" and features is not None:
        return mlp_like(state, features=features, classes=len(card.classes))
    design = Design(card.network, len(card.classes), card.channels, card.image_size, features, card.tune)
    # A copy: the process keeps the backbone for others, and the two models of a blend must not be one.
    model = copy.deepcopy(pretrained(design, card)) if design.kind[0] == "timm" else build_design(design, None)
    set_state(model, state)
    # Nobody trains it any more: a plain network says the same in fewer steps.
    merge(model)
    return model


def pretrained(design: Design, card: ModelCard) -> nn.Module:
    """The backbone that a model was tuned on, or what to do where it cannot be had."""
    asker = Asker("the model card", "--weights", SettingsError)
    try:
        model = network_with(design, named_weights(card.network, card.weights), card.seed, asker)
    except SettingsError as error:
        raise SettingsError(
            f"this file holds what was tuned of {card.network} and not the rest, which is missing here: {error}; name "
            "your copy of its weights with --weights FILE"
        ) from None
    if card.weights_digest and frozen_digest(model) != card.weights_digest:
        raise SettingsError(
            f"the weights of {card.network} that are here are not those that this model was tuned on "
            f"({card.weights_digest[:12]}): name the right file with --weights FILE"
        )
    return model


def predict(model: nn.Module, card: ModelCard, samples: ImageSamples | TableSamples) -> Iterator[Prediction | Fault]:
    """Yield for each image or row, in order, what the model says, or why the image cannot be read."""
    for start in range(0, len(samples), _BATCH):
        positions = range(start, min(start + _BATCH, len(samples)))
        inputs, unreadable = _inputs(card, samples, positions)
        found = log_probabilities(model, inputs, classes=len(card.classes), batch_size=_BATCH, device=default_device())
        scores = iter(found.exp().numpy())
        for position in positions:
            fault = unreadable.get(position)
            yield fault or Prediction(samples.name(position), next(scores))


def _inputs(
    card: ModelCard, samples: ImageSamples | TableSamples, positions: range
) -> tuple[NDArray[np.uint8] | NDArray[np.float32], dict[int, Fault]]:
    """What the network reads of the samples, in order, without those that cannot be read, which are named apart."""
    if isinstance(samples, TableSamples):
        return samples.rows[positions], {}
    encoder = None if card.encoder is None else load_encoder(card.encoder, card.seed)
    size, channels = (card.image_size, card.channels) if encoder is None else (encoder.size, 3)
    pixels: list[NDArray[np.uint8]] = []
    unreadable: dict[int, Fault] = {}
    for position, outcome in zip(positions, samples.attempts(positions, size, channels), strict=True):
        if isinstance(outcome, Undecodable):
            unreadable[position] = Fault(outcome.name, outcome.reason)
        else:
            pixels.append(outcome)
    images = np.stack(pixels) if pixels else np.empty((0, size, size, channels), np.uint8)
    if encoder is None:
        return images, unreadable
    vectors = encoder.embed(images)
    return projected(vectors, card.projection, card.seed).astype(np.float32) if card.projection else vectors, unreadable
