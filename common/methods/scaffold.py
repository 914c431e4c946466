"""SCAFFOLD: control variates go down, and their changes come up."""

from __future__ import annotations

from pydantic import Field

from common.extras import like_parameters
from common.methods.agreement import Agreement
from common.section import Section

# c on the way down; c_i⁺ − c_i on the way up.
VARIATE = "variate"


class Settings(Section):
    """Of SCAFFOLD."""

    rate: float = Field(1.0, gt=0, description="how far the server follows the mean of its sites (η_g)")


AGREEMENT = Agreement(
    "scaffold", Settings, down={VARIATE: like_parameters}, up={VARIATE: like_parameters}, remembers=True
)
