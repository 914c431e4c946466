"""A trained model as a file: the weights, and the card that says what they are and how to use them.

The card is part of the file, so that neither can be had without the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from common.config import NETWORK, EncoderSettings, SettingsError, SiteSettings
from common.encoders import HEADS
from common.foreign import Unusable, read_tensors
from common.methods.dc_cfl import Settings as CollaborationSettings
from common.metrics import Metrics
from common.naming import BesideNaming
from common.section import Section
from common.state import State
from common.table import Table
from common.tensors import contiguous, write_tensors

# What a site may keep in the end: its group's model, that model trained further, one trained on its own data alone, its
# group's and one of its own together, or the one that its method makes for it.
Kept = Literal["group", "finetuned", "local", "blend", "own"]

INTEGRATED = (
    "it reads columns that a site's rows become only by that site's private map and mapping: use the model that the "
    "site keeps, or that `coterie collab apply --out` writes there"
)
PARTIAL = "the rest of the network is each site's own and never left it: use the model that a site keeps"
PRIVATE = (
    "the site's private map is part of the first layer: whoever has this file has the map, so it stays at the site"
)

_KEY = "coterie"


class TestResult(Section):
    """How well the model does on a test split; null where it is not defined."""

    __test__ = False  # or pytest would take it for a test

    samples: int = Field(ge=0, description="test samples")
    accuracy: float | None = Field(description="share that is classified correctly")
    macro_f1: float | None = Field(description="mean over the classes that occur")
    auc: float | None = Field(description="mean of the one-versus-rest areas")
    loss: float | None = Field(description="mean cross-entropy")
    naming: float | None = Field(
        None, description="accuracy of always naming the most frequent class of that split; a model must beat it"
    )

    @property
    def beside_naming(self) -> BesideNaming | None:
        """Whether the model has learnt more than which class is frequent; None where that is not known."""
        if self.accuracy is None or self.naming is None or not self.samples:
            return None
        return BesideNaming(self.accuracy, self.naming, self.samples)


class ModelCard(Section):
    """What a model is, what it takes, and how well it does."""

    network: str = Field(pattern=NETWORK, description="name of the network (train.model)")
    classes: tuple[str, ...] = Field(min_length=1, description="names of the outputs, in their order")
    input: Literal["image", "table", "embedding", "integrated"] = Field(
        "image",
        description="what it reads: pixels, rows of a table, an encoder's numbers, or columns of no use by themselves",
    )
    tune: str = Field("", description="network = timm:…: what of it was trained; only that is in this file")
    weights: str = Field("", description="network = timm:…: packaged, hub, random or the file that the rest comes from")
    weights_digest: str = Field(
        "", description="network = timm:…: what the pretrained weights must be, by SHA-256 of their values"
    )
    image_size: int = Field(ge=8, le=1024, description="input = image: side in pixels of the square images it takes")
    channels: int = Field(ge=1, le=3, description="input = image: 1: grey, 3: RGB")
    table: Table | None = Field(None, description="input = table: the agreed schema, by which rows are scaled")
    encoder: EncoderSettings | None = Field(None, description="input = embedding: what turns images into numbers")
    projection: int = Field(0, ge=0, le=65_536, description="input = embedding: numbers that an image becomes")
    preprocessing: str = Field("", description="how an image or a row becomes an input, in words")
    whole: bool = Field(True, description="false: some of its tensors are the sites' own and not in this file")
    method: str = Field("", description="how the sites were grouped")
    prior: Literal["site", "off"] = Field(
        "off", description="site: a model for balanced classes, which expects the shares of the place it is used at"
    )
    shares: tuple[float, ...] = Field(
        (), description="prior = site: class shares that the site expects, in the order of classes; empty: equal ones"
    )
    group: int = Field(ge=0, description="group of sites that trained it")
    kept: Kept = Field(
        "group",
        description="group: the group's model; finetuned: trained further; local: alone; blend: two of them; own: by "
        "its method",
    )
    blend: float | None = Field(
        None, gt=0, lt=1, description="kept = blend: weight of the probabilities of `group.*` beside those of `own.*`"
    )
    round: int = Field(ge=0, description="rounds of training behind it")
    seed: int = Field(0, ge=0, description="seed of the run")
    site: str = Field("", description="the site that keeps it; empty: the coordinator")
    run: str = Field("", description="at a site: the run's stamp, as in its run.json and in the folder's name")
    date: str = Field("", description="when the site received it")
    trained_on: tuple[int, ...] = Field(
        (), description="at a site: its own training samples of each class, in the order of classes"
    )
    test: TestResult | None = Field(None, description="on the site's own test split; for the coordinator all members'")
    epsilon: float | None = Field(
        None, ge=0, description="what the site's privacy budget had come to when it received this; null: it has none"
    )
    delta: float | None = Field(None, gt=0, lt=1, description="at which delta")
    note: str = Field("", description="what to know before using it or passing it on")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.input == "table") != (self.table is not None):
            raise ValueError("a model has the schema of a table if it reads one, and only then")
        if (self.input == "embedding") != (self.encoder is not None):
            raise ValueError("a model has an encoder if it reads embeddings, and only then")
        if (self.projection > 0) != (self.input == "embedding" and self.network not in HEADS):
            raise ValueError("a model has a projection if it reads projected embeddings, and only then")
        if self.shares and (len(self.shares) != len(self.classes) or not all(0 < share <= 1 for share in self.shares)):
            raise ValueError("shares are numbers above 0 and at most 1, one for each class")
        if self.trained_on and (len(self.trained_on) != len(self.classes) or min(self.trained_on) < 0):
            raise ValueError("trained_on has a count for each class")
        if (self.kept == "blend") != (self.blend is not None):
            raise ValueError("a model has the weight of a blend if it is one, and only then")
        if self.network not in ("mlp", *HEADS) if self.input != "image" else self.network in HEADS:
            raise ValueError(f"network {self.network!r} does not read {self.input}")
        return self


def _of_images(image_size: int, channels: int) -> str:
    colour = "grey (RGB by luma)" if channels == 1 else "RGB (grey repeated)"
    return (
        f"turned upright by its EXIF tag, {colour}, resized to {image_size}×{image_size} pixels (bilinear, "
        "antialiased, aspect ratio not kept), 8 bits, then value / 127.5 − 1; arranged as channels, rows, columns"
    )


_OF_TABLES = (
    "the columns of the schema in its order. A number is moved into its range and becomes (value − mean) / spread, the "
    "mean standing in where it is missing; without an agreed mean the middle of the range, without a spread its width "
    "/ √12. A category becomes one number for each that is agreed, (1 or 0 − share) / √(share (1 − share)); all 0 "
    "where it is missing or unknown"
)


def _of_embeddings(encoder: str, projection: int) -> str:
    return (
        f"RGB pixels at the size of the encoder {encoder}; its numbers scaled to length 1 and multiplied by a Gaussian "
        f"matrix with {projection} columns that the run's seed draws"
    )


def describe(
    settings: SiteSettings,
    classes: tuple[str, ...],
    group: int,
    round_number: int,
    test: Metrics | None,
    *,
    integrated: bool = False,
) -> ModelCard:
    """The card of a group's model. It holds no time and no place: equal runs give equal files.

    `integrated`: the coordinator's copy of a network on integrated columns (DC-CFL).
    """
    data = settings.data
    return ModelCard(
        network="mlp" if integrated or data.input == "embedding" else settings.train.model,
        classes=classes,
        image_size=data.image_size,
        channels=data.channels,
        tune=settings.train.tune or ("head" if settings.train.model.startswith("timm:") else ""),
        weights=settings.train.weights,
        group=group,
        round=round_number,
        seed=settings.seed,
        prior="off" if integrated or data.input == "embedding" else settings.train.prior,
        test=None if test is None else result_of(test),
        **_input(settings, integrated=integrated),
    )


def _input(settings: SiteSettings, *, integrated: bool) -> dict[str, Any]:
    """What of a card says what the model reads."""
    data, encoder = settings.data, settings.encoder
    if integrated:
        return {"input": "integrated", "note": INTEGRATED}
    if data.table is not None:
        return {"input": "table", "table": data.table, "preprocessing": _OF_TABLES}
    if settings.train.model in HEADS:
        words = f"RGB pixels at the size of the encoder {encoder.name}, whose numbers the model reads"
        return {"input": "embedding", "encoder": encoder, "preprocessing": words}
    if data.input == "embedding":
        projection = settings.of(CollaborationSettings).projection
        words = _of_embeddings(encoder.name, projection)
        return {"input": "embedding", "encoder": encoder, "projection": projection, "preprocessing": words}
    return {"preprocessing": _of_images(data.image_size, data.channels)}


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
        naming=defined(metrics.naming),
    )


def save_model(path: Path, state: Mapping[str, NDArray[Any]], card: ModelCard) -> None:
    """Write a model so that a reader sees a whole file or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    arrays = {name: contiguous(array) for name, array in state.items()}
    if card.site:
        # A model may betray what it was trained on; nobody else on the site's machine need have it.
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    write_tensors(temporary, arrays, {_KEY: card.model_dump_json()})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_model(path: Path) -> tuple[State, ModelCard]:
    """Read a model and its card, or raise `SettingsError` saying what is wrong with the file."""
    try:
        state, notes = read_tensors(path)
        card = notes.get(_KEY)
    except FileNotFoundError:
        raise SettingsError(f"there is no model {path}") from None
    except (OSError, Unusable) as error:
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
