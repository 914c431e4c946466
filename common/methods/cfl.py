"""CFL: when a group whose sites pull in different directions is split."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of CFL."""

    after: int = Field(20, ge=0, description="no split in the first so many rounds")
    mean_norm: float = Field(0.4, gt=0, description="the group's mean update must be shorter (epsilon 1)")
    max_norm: float = Field(1.6, gt=0, description="some site's update must be longer (epsilon 2)")


AGREEMENT = Agreement("cfl", Settings)
