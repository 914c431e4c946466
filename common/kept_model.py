"""A trained model as a file: the weights, and the card that says what they are and how to use them.

The card is part of the file, so that neither can be had without the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open

from common.config import Config, Section, SettingsError
from common.metrics import Metrics
from common.models import State
from common.tensors import write_tensors

_KEY = "coterie"


class TestResult(Section):
    """How well the model does on a test split; null where it is not defined."""

    __test__ = False  # or pytest would take it for a test

    samples: int = Field(ge=0, description="test samples")
    accuracy: float | None = Field(description="share that is classified correctly")
    macro_f1: float | None = Field(description="mean over the classes that occur")
    auc: float | None = Field(description="mean of the one-versus-rest areas")
    loss: float | None = Field(description="mean cross-entropy")


class ModelCard(Section):
    """What a model is, what it takes, and how well it does."""

    network: str = Field(description="name of the network (train.model)")
    classes: tuple[str, ...] = Field(min_length=1, description="names of the outputs, in their order")
    image_size: int = Field(ge=8, le=1024, description="side in pixels of the square images it takes")
    channels: int = Field(ge=1, le=3, description="1: grey, 3: RGB")
    preprocessing: str = Field("", description="how an image becomes an input, in words")
    method: str = Field("", description="how the sites were grouped")
    group: int = Field(ge=0, description="group of sites that trained it")
    round: int = Field(ge=0, description="rounds of training behind it")
    seed: int = Field(0, ge=0, description="seed of the run")
    site: str = Field("", description="the site that keeps it; empty: the coordinator")
    run: str = Field("", description="Flower's number of the run, at a site")
    date: str = Field("", description="when the site received it")
    test: TestResult | None = Field(None, description="on the site's own test split; for the coordinator all members'")


def preprocessing(image_size: int, channels: int) -> str:
    """How an image becomes an input, in words."""
    colour = "grey (RGB by luma)" if channels == 1 else "RGB (grey repeated)"
    return (
        f"turned upright by its EXIF tag, {colour}, resized to {image_size}×{image_size} pixels (bilinear, "
        "antialiased, aspect ratio not kept), 8 bits, then value / 127.5 − 1; arranged as channels, rows, columns"
    )


def describe(
    config: Config, classes: tuple[str, ...], group: int, round_number: int, test: Metrics | None
) -> ModelCard:
    """The card of the coordinator's copy. It holds no time and no place: equal runs give equal files."""
    return ModelCard(
        network=config.train.model,
        classes=classes,
        image_size=config.data.image_size,
        channels=config.data.channels,
        preprocessing=preprocessing(config.data.image_size, config.data.channels),
        method=config.method,
        group=group,
        round=round_number,
        seed=config.seed,
        test=None if test is None else result_of(test),
    )


def result_of(metrics: Metrics) -> TestResult:
    """Metrics as a card holds them."""

    def defined(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return TestResult(
        samples=metrics.count,
        accuracy=defined(metrics.accuracy),
        macro_f1=defined(metrics.macro_f1),
        auc=defined(metrics.auc),
        loss=defined(metrics.loss),
    )


def save_model(path: Path, state: Mapping[str, NDArray[Any]], card: ModelCard) -> None:
    """Write a model so that a reader sees a whole file or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in state.items()}
    write_tensors(temporary, arrays, {_KEY: card.model_dump_json()})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_model(path: Path) -> tuple[State, ModelCard]:
    """Read a model and its card, or raise `SettingsError` saying what is wrong with the file."""
    try:
        with safe_open(path, framework="numpy") as file:
            card = (file.metadata() or {}).get(_KEY)
            state: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        raise SettingsError(f"there is no model {path}") from None
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"{path} is not a readable .safetensors file: {error}") from None
    if card is None:
        raise SettingsError(
            f"{path} has no model card: MODEL is a file that Coterie wrote, model.safetensors of a site or "
            "models/group-<k>.safetensors of a run directory"
        )
    try:
        return state, ModelCard.model_validate_json(card)
    except ValidationError as error:
        raise SettingsError(f"the model card of {path} is not valid: {error}") from None
