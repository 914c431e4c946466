"""IFCA: all models go down, and the site says which of them it trained."""

from __future__ import annotations

from common.extras import Expected, exactly, like_model
from common.methods.agreement import Agreement, Question

# Models of the other groups, under the group's number.
OTHERS = "group"
# The group whose model a site trained.
CHOICE = "choice"
# Asked once, before the first round: the mean loss on the site's training samples under each of K starts.
LOSSES = "losses"

AGREEMENT = Agreement(
    "ifca",
    down={f"{OTHERS}.*": like_model},
    up={CHOICE: exactly(group=Expected("int64", least=0))},
    questions={
        LOSSES: Question(
            down={f"{OTHERS}.*": like_model},
            # Arrays that travel are finite: the largest number stands for a loss that is none.
            up={LOSSES: exactly(values=Expected("float64", (None,), least=0))},
        )
    },
)
