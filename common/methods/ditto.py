"""Ditto: how strongly a site's own model is held near the common one."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of Ditto."""

    pull: float = Field(1.0, ge=0, description="how strongly a site's own model is held near the one received (λ)")


AGREEMENT = Agreement("ditto", Settings, remembers=True)
