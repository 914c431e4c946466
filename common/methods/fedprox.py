"""FedProx: how strongly sites are held near the model they received."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of FedProx."""

    mu: float = Field(0.01, ge=0, description="how strongly a site is held near the model it received")


AGREEMENT = Agreement("fedprox", Settings)
