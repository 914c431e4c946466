"""LG-FedAvg: the last linear layers are common, what lies below them is each site's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section

if TYPE_CHECKING:
    from common.config import SiteSettings
    from common.state import State


class Settings(Section):
    """Of LG-FedAvg."""

    layers: int = Field(2, ge=1, description="how many of the last linear layers all sites share (L)")


def last_layers(state: State, settings: SiteSettings) -> set[str]:
    """The tensors of the last linear layers; those of a linear layer's weights are the only ones with two axes."""
    # One that is adapted has two of them, `down` and `up`, and is one layer all the same.
    linear = dict.fromkeys(name.rpartition(".")[0] for name, array in state.items() if array.ndim == 2)
    shared = set(list(linear)[-settings.of(Settings).layers :])
    return {name for name in state if name.rpartition(".")[0] in shared}


AGREEMENT = Agreement("lg-fedavg", Settings, shared=last_layers, remembers=True, private=True)
