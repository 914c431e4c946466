"""Which network the settings of a run, or a received state, speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from common.classes import agreed_classes
from common.config import SiteSettings
from common.encoders import HEADS, embedding_width
from common.models import InvalidState, build, set_state
from common.own_network import build_own

# A wider layer is nobody's small network, and its memory is not claimed on a stranger's word.
_WIDEST = 4096


@dataclass(frozen=True)
class Design:
    """Everything that the form of a network depends on.

    Attributes
    ----------
    name
        As in train.model.
    classes, channels, image_size
        What it tells apart, and of which images.
    features
        Length of the vectors it reads in the place of images.
    tune
        As in train.tune.
    """

    name: str
    classes: int
    channels: int = 3
    image_size: int = 32
    features: int | None = None
    tune: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Where the network comes from, "timm", "python" or nothing if it is ours, and what it is called there."""
        kind, colon, name = self.name.partition(":")
        return (kind, name) if colon else ("", self.name)


def design_of(settings: SiteSettings) -> Design:
    """The network that sites of a run train, on its images, the columns of its table or its encoder's numbers."""
    data, train = settings.data, settings.train
    features = None if data.table is None else data.table.width
    if train.model in HEADS:
        features = embedding_width(settings.encoder, data)
    return Design(train.model, len(agreed_classes(data)), data.channels, data.image_size, features, train.tune)


def build_for(settings: SiteSettings, seed: int | None) -> nn.Module:
    """Return the network of a run, as a server has it: of a pretrained one what is tuned, without the weights."""
    return build_design(design_of(settings), seed)


def build_design(design: Design, seed: int | None) -> nn.Module:
    """Return a network as a server has it; see `common.models.build` for `seed`."""
    kind, name = design.kind
    if kind == "timm":
        # Not for everybody: timm takes a second to import.
        from common.backbones import blank

        return blank(name, classes=design.classes, size=design.image_size, tune=design.tune, seed=seed)
    if kind == "python":
        return build_own(
            name, channels=design.channels, image_size=design.image_size, classes=design.classes, seed=seed
        )
    return build(
        name,
        classes=design.classes,
        channels=design.channels,
        image_size=design.image_size,
        features=design.features,
        seed=seed,
    )


def mlp_like(state: Mapping[str, NDArray[Any]], *, features: int, classes: int) -> nn.Module:
    """Return the mlp on `features` columns whose state this is; its hidden widths are those of the state."""
    widths = []
    for layer in ("body.1", "body.3"):
        bias = state.get(f"{layer}.bias")
        if bias is None or bias.ndim != 1 or not 1 <= len(bias) <= _WIDEST:
            raise InvalidState(f"{layer}.bias is missing or of an impossible shape")
        widths.append(len(bias))
    if not all(array.dtype.kind != "f" or np.isfinite(array).all() for array in state.values()):
        raise InvalidState("it holds values that are not finite")
    model = build("mlp", classes=classes, features=features, hidden=(widths[0], widths[1]), seed=None)
    set_state(model, state)
    return model
