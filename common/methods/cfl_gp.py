"""CFL-GP: everybody tells its gradient at one model after the other."""

from __future__ import annotations

from pydantic import Field

from common.extras import Expected, exactly, like_model, like_parameters
from common.methods.agreement import Agreement, Question
from common.methods.ifca import LOSSES, OTHERS
from common.section import Section

# Asked of everybody while groups form: the gradient of the loss on all training samples at the model that goes down.
GRADIENT = "gradient"
CRITERION = "criterion"


class Settings(Section):
    """Of CFL-GP."""

    every: int = Field(2, ge=1, description="rounds between two times that sites are grouped (P)")
    times: int = Field(5, ge=1, description="how often they are, the first time before training (T_cl)")


AGREEMENT = Agreement(
    "cfl-gp",
    Settings,
    questions={
        GRADIENT: Question(down={CRITERION: like_model}, up={GRADIENT: like_parameters}),
        # Of a newcomer: the mean loss on its training samples under each group's model.
        LOSSES: Question(
            down={f"{OTHERS}.*": like_model}, up={LOSSES: exactly(values=Expected("float64", (None,), least=0))}
        ),
    },
)
