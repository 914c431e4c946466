"""Rehearsal: heads for every number of groups are trained in the same messages, before the training itself.

Not a method of its own: it answers the question how many groups help, for methods that cut a tree of merges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from common.extras import Expected, exactly
from common.methods.agreement import Agreement, Question
from common.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterable

RULE = "rehearsal"
TRAIN, TEST = "train", "test"
# Heads of the groups that a site is in, by number: float32[folds, classes, width + 1], the last column a bias.
HEAD = "head"
# Which round of the rehearsal it is.
STEP = "step"
LOSSES = "losses"
# A site's samples fall into so many parts; in fold f it trains on all but part f, and is tested on that.
PARTS = 5
# Log loss of a sample that a head has no idea of: more says nothing more.
MOST_LOSS = 50.0
# Of a head: steps are of a hundredth of inputs of a fixed length, so that training stays far below it.
MOST_WEIGHT = 100.0


class Settings(Section):
    """How heads are trained for every number of groups, where `cluster.choice = "rehearsal"`."""

    rounds: int = Field(15, ge=1, le=1000, description="rounds of a rehearsal; each is one small message to every site")
    megabytes: float = Field(
        45.0, gt=0, description="most that a site sends in a rehearsal; where five folds would be more, there are fewer"
    )


_HEADS = exactly(weights=Expected("float32", (None, None, None)))
_STEP = exactly(number=Expected("int64", (), least=1))

AGREEMENT = Agreement(
    RULE,
    settings=Settings,
    embeds=True,
    rounds_before=lambda settings: settings.of(Settings).rounds,
    tells="linear heads that it trains on the encoder, and the loss of each on training samples that were left out",
    questions={
        TRAIN: Question(down={f"{HEAD}.*": _HEADS, STEP: _STEP}, up={f"{HEAD}.*": _HEADS}),
        TEST: Question(
            down={f"{HEAD}.*": _HEADS},
            up={
                LOSSES: exactly(
                    heads=Expected("float64", (None,), least=0),
                    alone=Expected("float64", (), least=0),
                    samples=Expected("int64", (), least=1),
                )
            },
        ),
    },
)


def numbers(names: Iterable[str]) -> list[int]:
    """The numbers of the heads in a message, in order."""
    return sorted(int(name.removeprefix(f"{HEAD}.")) for name in names if name != STEP)
