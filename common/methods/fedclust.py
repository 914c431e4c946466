"""FedClust: how long sites warm up before they are grouped."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of FedClust."""

    warm_up: int = Field(1, ge=1, le=100, description="local epochs after which the heads group the sites")


AGREEMENT = Agreement("fedclust", Settings)
