"""FedClust: how long sites warm up before they are grouped, and how the distances of their heads are measured."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of FedClust."""

    warm_up: int = Field(1, ge=1, le=100, description="local epochs after which the heads group the sites")
    relative: bool = Field(False, description="distances of heads, and cluster.threshold, in parts of the largest one")


AGREEMENT = Agreement("fedclust", Settings)
