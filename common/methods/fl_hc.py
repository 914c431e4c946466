"""FL+HC: once, in the middle of training, sites are asked where a short training of the common model leads them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.extras import like_model, like_parameters
from common.methods.agreement import Agreement, Question
from common.section import Section

# Asked once of every site: what local training changes in the model that goes down.
DIRECTION = "direction"
START = "start"


class Settings(Section):
    """Of FL+HC."""

    rounds: int = Field(10, ge=1, description="rounds of FedAvg after which all sites are grouped (n)")
    epochs: int = Field(3, ge=1, le=100, description="local epochs whose change groups them")
    distance: Literal["l1", "l2", "cosine"] = Field("l1", description="between two sites' changes")


AGREEMENT = Agreement(
    "fl-hc",
    Settings,
    questions={DIRECTION: Question(down={START: like_model}, up={DIRECTION: like_parameters})},
)
