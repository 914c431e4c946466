"""Which network the settings of a run, or a received state, speak of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from common.classes import agreed_classes
from common.config import SiteSettings
from common.encoders import HEADS, embedding_width
from common.models import InvalidState, build, set_state

# A wider layer is nobody's small network, and its memory is not claimed on a stranger's word.
_WIDEST = 4096


def build_for(settings: SiteSettings, seed: int | None) -> nn.Module:
    """Return the network that sites of a run train, on its images or the columns of its table."""
    data = settings.data
    features = None if data.table is None else data.table.width
    if settings.train.model in HEADS:
        features = embedding_width(settings.encoder, data)
    return build(
        settings.train.model,
        classes=len(agreed_classes(data)),
        channels=data.channels,
        image_size=data.image_size,
        features=features,
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
