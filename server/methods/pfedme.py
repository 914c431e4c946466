"""pFedMe: personal models by Moreau envelopes."""

from __future__ import annotations

import numpy as np

from common.config import Config, SettingsError
from common.methods.pfedme import Settings
from common.state import State
from common.tensor_names import is_parameter
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Federation, TrainingRule


class Envelopes(TrainingRule):
    """w⁺ = (1 − β) w + β mean(w_i) (pFedMe, algorithm 1)."""

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._beta = config.of(Settings).beta

    def passes(self) -> float:
        """So many steps on each batch."""
        return float(self.config.of(Settings).steps)

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Follow the mean."""
        if self._beta == 1:
            return mean
        return {
            name: (x + self._beta * (mean[name] - x.astype(np.float64))).astype(x.dtype)
            if is_parameter(name)
            else mean[name]
            for name, x in before.items()
        }


def check(config: Config) -> None:
    """Refuse steps that would overshoot what they are drawn to."""
    settings = config.of(Settings)
    if config.train.lr * settings.pull > 1:
        raise SettingsError(
            f"train.lr × pfedme.pull = {config.train.lr * settings.pull:g}: above 1 the common model would overshoot "
            "the site's own; lower one of them"
        )
    if settings.rate * settings.pull >= 2:
        raise SettingsError(
            f"pfedme.rate × pfedme.pull = {settings.rate * settings.pull:g}: from 2 on the site's own model would run "
            "away from the common one; lower one of them"
        )


METHOD = Method(
    name="pfedme",
    title="pFedMe",
    about=(
        "As Ditto, with the common model drawn after the sites' own: `pfedme.steps` gradients per batch. Each "
        "site remembers a model. Tested is θ; four public versions test another model by mistake, and have an L2 "
        "term that nobody names. At `pfedme.rate` = 0.09 and λ = 15, the published values, small networks may "
        "diverge: lower the rate."
    ),
    paper="T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020",
    summary="at each site a model of its own near the common one, which is drawn after it",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="pfedme",
    training=Envelopes,
    check=check,
    settings_used=("pfedme.pull", "pfedme.steps", "pfedme.rate", "pfedme.beta"),
)

METHODS = (METHOD,)
