"""PACFL: what is sent of a site's subspace, and how two of them are compared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of PACFL."""

    vectors: int = Field(3, ge=1, description="directions sent of a site's largest class (p)")
    angle: Literal["smallest", "sum"] = Field(
        "smallest", description="the smallest principal angle between two sites' subspaces, or their sum"
    )


AGREEMENT = Agreement("pacfl", Settings)
