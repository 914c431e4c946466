"""FedCM: how long sites warm up before they are grouped."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of FedCM."""

    warm_up: int = Field(5, ge=1, le=100, description="local epochs whose path groups the sites")


AGREEMENT = Agreement("fedcm", Settings)
