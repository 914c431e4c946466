"""pFedMe: a site's own model is what its loss and the nearness to the common model agree on."""

from __future__ import annotations

from pydantic import Field

from common.methods.agreement import Agreement
from common.section import Section


class Settings(Section):
    """Of pFedMe."""

    pull: float = Field(15.0, ge=0, description="how strongly a site's own model is held near the common one (λ)")
    steps: int = Field(5, ge=1, le=100, description="steps of the site's own model on each batch (K)")
    rate: float = Field(0.09, gt=0, description="learning rate of these steps (η_p); train.lr is the common model's")
    beta: float = Field(1.0, ge=0, description="how far the server follows the mean of its sites (β)")


AGREEMENT = Agreement("pfedme", Settings, remembers=True)
