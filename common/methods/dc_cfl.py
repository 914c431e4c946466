"""DC-CFL and DC: what a site sends, once."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from common.collaboration import DIGEST_BYTES, Answer
from common.extras import Expected, Extras, InvalidExtras, exactly
from common.methods.agreement import Agreement
from common.section import Section
from common.state import State


class Settings(Section):
    """Of the methods dc-cfl and dc."""

    anchors: Literal["gaussian", "uniform", "interpolated"] = Field(
        "gaussian",
        description="rows all sites share: by the schema's means, spreads and correlations; uniform in its ranges; "
        "interpolated between public rows",
    )
    anchor_rows: int = Field(1000, ge=2, le=100_000, description="number of anchors (r in the paper)")
    sample: str = Field(
        "", description="file with public rows (anchors = interpolated) in a simulation; a site names its own copy"
    )
    dimensions: int = Field(0, ge=0, description="dimensions a site keeps of its rows; 0: one fewer than they have")
    projection: int = Field(64, ge=2, description="data.input = embedding: numbers an embedding is first projected to")
    aggregate: int = Field(
        1, ge=1, description="rows of one class averaged into one before they are sent; 1: each row by itself"
    )
    noise: float = Field(
        0.0, ge=0, description="Gaussian noise added to the rows that are sent, in parts of their own spread; 0: none"
    )


_ANSWER = "answer"

AGREEMENT = Agreement(
    "dc-cfl",
    Settings,
    section="collaboration",
    down={
        _ANSWER: exactly(mapping=Expected("float64", (None, None)), ticket=Expected("uint8", (DIGEST_BYTES,))),
    },
)


def beside_model(answer: Answer) -> Extras:
    """What travels with the model of an answer."""
    return {_ANSWER: {"mapping": answer.mapping, "ticket": answer.ticket}}


def read_answer(model: State, extras: Extras) -> Answer:
    """Put an answer together at the site; whether it fits the site's private map is found out there."""
    arrays = extras[_ANSWER]
    if not arrays["mapping"].size:
        raise InvalidExtras("the mapping of the answer is empty")
    if not all(np.isfinite(array).all() for array in model.values()):
        raise InvalidExtras("the model of the answer is not finite: its training diverged, perhaps by train.lr")
    return Answer(arrays["mapping"], arrays["ticket"], model)
