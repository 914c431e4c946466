"""FlexCFL: where a short training from the common start leads a site, and whether its labels have shifted since."""

from __future__ import annotations

from pydantic import Field

from common.extras import Expected, exactly, like_model
from common.methods.agreement import Agreement, Question
from common.section import Section

# Asked before training, and again of a site whose labels have shifted: the common start, trained for some steps.
COLD_START = "cold start"
START = "start"
# Samples of each class that the site tells of: of its last cold start on the way down, as they are now on the way up.
LABELS = "labels"
# Whether they have shifted.
SHIFT = "shift"

_COUNTS = exactly(counts=Expected("int64", (None,), least=0))


class Settings(Section):
    """Of FlexCFL."""

    steps: int = Field(50, ge=1, le=10_000, description="mini-batches of the training that groups sites")
    shift: float = Field(
        0.1, ge=0, le=1, description="a site is placed anew if its label shares have changed by more (total variation)"
    )


AGREEMENT = Agreement(
    "flexcfl",
    Settings,
    tells="the first model after some steps, and whether its class counts have shifted",
    down={LABELS: _COUNTS},
    up={SHIFT: exactly(shifted=Expected("int64", least=0, most=1))},
    questions={COLD_START: Question(down={START: like_model}, up={COLD_START: like_model, LABELS: _COUNTS})},
)
