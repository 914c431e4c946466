"""SCAFFOLD: control variates correct the drift of local steps towards each site's own optimum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.config import Config
from common.methods.scaffold import VARIATE, Settings
from common.state import Extras, State
from common.tensor_names import is_parameter
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Federation, Remembered, TrainingRule

# The changes of the variates go through the mean beside the model.
_CHANGE = "variate of "


class ControlVariates(TrainingRule):
    """x⁺ = x + η_g mean(y_i − x); c⁺ = c + Σ_S (n_i / Σ_N n_j) (c_i⁺ − c_i) (SCAFFOLD, algorithm 1).

    The paper means uniformly; with the weights n_i the same holds for sites of any size, and always c = Σ_N (n_i / n)
    c_i, with n_i as a site was first met: data that change do not change the weight of what is remembered. A newcomer
    has c_i = 0, so c is scaled by the share of the samples that were there before it.
    """

    needs_lasting_groups = True

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._rate = config.of(Settings).rate
        self._variates: dict[int, State] = {}
        # Samples of the sites that each group's variate is a mean over, as they were first met.
        self._sizes: dict[int, dict[str, int]] = {}

    def beside(self, group: int, models: Mapping[int, State]) -> Extras:
        """Send c."""
        known = self._sizes.get(group, {})
        sizes = {**self.federation.sizes(group), **known}
        variate = self._variates.get(group) or _zeros(models[group])
        if known and len(sizes) > len(known):
            share = sum(known.values()) / sum(sizes.values())
            variate = {name: (array * share).astype(array.dtype) for name, array in variate.items()}
        self._variates[group], self._sizes[group] = variate, sizes
        return {VARIATE: variate}

    def reference(self, model: State) -> State:
        """The model, and the changes of the variates, which are of the size of gradients."""
        return model | {f"{_CHANGE}{name}": array for name, array in _zeros(model).items()}

    def term(self, contribution: Contribution) -> State:
        """The update, and c_i⁺ − c_i, which counts as much as the site did when it was first met."""
        share = self._sizes[contribution.group][contribution.site] / contribution.samples
        changes = contribution.extras[VARIATE]
        return contribution.after | {
            f"{_CHANGE}{name}": change if share == 1 else (change * share).astype(change.dtype)
            for name, change in changes.items()
        }

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Follow the mean, and move c by the share of the group that was heard."""
        share = samples / sum(self._sizes[group].values())
        variate = self._variates[group]
        self._variates[group] = {
            name: (c + share * mean[f"{_CHANGE}{name}"]).astype(c.dtype) for name, c in variate.items()
        }
        if self._rate == 1:
            return {name: mean[name] for name in before}
        return {
            name: (x + self._rate * (mean[name] - x)).astype(x.dtype) if is_parameter(name) else mean[name]
            for name, x in before.items()
        }

    def state(self) -> Remembered:
        """c of every group, and what it is a mean over."""
        return {
            "variates": {str(group): variate for group, variate in self._variates.items()},
            "sizes": {str(group): sizes for group, sizes in self._sizes.items()},
        }

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._variates = {int(group): variate for group, variate in state["variates"].items()}
        self._sizes = {int(group): dict(sizes) for group, sizes in state["sizes"].items()}


def _zeros(model: State) -> State:
    return {name: np.zeros_like(array) for name, array in model.items() if is_parameter(name)}


METHOD = Method(
    name="scaffold",
    title="SCAFFOLD",
    about=(
        "When sites' optima lie far apart and the same sites come again and again. A variate of the model's size "
        "travels down and back, and each site remembers its own, so double the traffic and one addition a step; "
        "under partial participation a variate gets old. In public versions the server's variate grows with N / "
        "|S|, sites never store theirs, variates start as the weights, or batch norm's counters have some."
    ),
    paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020",
    summary="one model for all sites, whose steps are corrected for what their own data have in excess",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
    rule="scaffold",
    training=ControlVariates,
    settings_used=("scaffold.rate",),
)

METHODS = (METHOD,)
