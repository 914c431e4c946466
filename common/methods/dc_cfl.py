"""DC-CFL and DC: what a site sends, once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.extras import Expected, exactly
from common.methods.agreement import Agreement
from common.section import Section


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


ANSWER = "answer"
DIGEST_BYTES = 32

AGREEMENT = Agreement(
    "dc-cfl",
    Settings,
    section="collaboration",
    down={
        ANSWER: exactly(mapping=Expected("float64", (None, None)), ticket=Expected("uint8", (DIGEST_BYTES,))),
    },
)
