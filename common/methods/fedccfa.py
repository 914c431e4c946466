"""FedCCFA: one body, a head for each site; class by class, sites whose heads agree share a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from common.extras import Expected, Network, like_own
from common.methods.agreement import Agreement
from common.section import Section
from common.tensor_names import is_head

# Down, to one site alone: its head, and what else the server keeps for it.
OWN_HEAD = "own head"
ANCHORS = "anchors"
# Up: its head, the head that was trained on as many samples of each class, the mean features and the label counts
# of the classes that the site tells of.
HEAD = "head"
BALANCED = "balanced head"
PROTOTYPES = "prototypes"


class Settings(Section):
    """Of FedCCFA."""

    samples: int = Field(5, ge=1, description="most samples of a class that the balanced head is trained on")
    balanced_epochs: int = Field(5, ge=1, le=100, description="epochs of the balanced head, from the run's first head")
    head_epochs: int = Field(1, ge=1, le=100, description="epochs of the site's own head in a round")
    head_rate: float = Field(0.1, gt=0, description="learning rate of both heads; train.lr and train.epochs: the body")
    align_from: int = Field(20, ge=1, description="first round in which features are drawn to the anchors")
    temperature: float = Field(0.1, gt=0, description="of the cosines between features and anchors (τ)")
    gamma: float = Field(20.0, gt=0, description="the alignment counts by the entropy of a site's labels over this (γ)")
    eps: float = Field(
        0.1, ge=-1, description="sites share a class's row if theirs are no farther apart; below 0: none"
    )
    weights: Literal["uniform", "counts"] = Field(
        "uniform", description="how shared rows are averaged: each site alike, or by its samples of the class"
    )


def _by_class(network: Network, **more: Expected) -> Mapping[str, Expected]:
    """One mean feature for each class, whatever the others are."""
    width = network.own["head.weight"].shape[1]
    return {"means": Expected("float32", (network.classes, width)), **more}


def _anchors(network: Network) -> Mapping[str, Expected]:
    held = Expected("int64", (network.classes,), least=0, most=1)
    return _by_class(network, held=held, known=Expected("int64", least=0, most=1))


def _prototypes(network: Network) -> Mapping[str, Expected]:
    return _by_class(network, counts=Expected("int64", (network.classes,), least=0))


AGREEMENT = Agreement(
    "fedccfa",
    Settings,
    tells="the mean feature that the model has for each class that is large enough, with its count, in every round",
    down={OWN_HEAD: like_own, ANCHORS: _anchors},
    up={HEAD: like_own, BALANCED: like_own, PROTOTYPES: _prototypes},
    shared=lambda state, _: {name for name in state if not is_head(name)},
)
