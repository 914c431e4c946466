"""FedOpt: the mean of what sites change is a gradient to the server, which steps along it adaptively."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.methods.fedopt import Settings
from common.state import State
from common.tensor_names import is_parameter
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Federation, Remembered, TrainingRule

Moments = dict[str, NDArray[np.float64]]


class FedAdam(TrainingRule):
    """m ← β₁ m + (1 − β₁) Δ; v ← v of the optimiser; x⁺ = x + η_s m / (√v + ε), with Δ = mean − x (algorithm 2).

    m starts at 0 and v at ε². There is no bias correction. Batch norm's statistics are measured, not stepped along:
    they are the sites' mean.
    """

    rate = 0.1

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._settings = config.of(Settings)
        self._moments: dict[int, tuple[Moments, Moments]] = {}

    def second(self, v: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Adam: v ← β₂ v + (1 − β₂) Δ²."""
        beta = self._settings.beta_2
        return beta * v + (1 - beta) * squares

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Step along the mean change."""
        settings, names = self._settings, [name for name in before if is_parameter(name)]
        first, second = self._moments.get(group) or (
            {name: np.zeros(before[name].shape) for name in names},
            {name: np.full(before[name].shape, settings.epsilon**2) for name in names},
        )
        after = dict(mean)
        m, v = {}, {}
        for name in names:
            x = before[name].astype(np.float64)
            change = mean[name] - x
            m[name] = settings.beta_1 * first[name] + (1 - settings.beta_1) * change
            v[name] = self.second(second[name], change * change)
            step = (settings.rate or self.rate) * m[name] / (np.sqrt(v[name]) + settings.epsilon)
            after[name] = (x + step).astype(before[name].dtype)
        self._moments[group] = m, v
        return after

    def forget(self, group: int) -> None:
        """Let go of a group's m and v."""
        self._moments.pop(group, None)

    def state(self) -> Remembered:
        """m and v of every group."""
        return {str(group): {"m": dict(m), "v": dict(v)} for group, (m, v) in self._moments.items()}

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._moments = {int(group): (moments["m"], moments["v"]) for group, moments in state.items()}


class FedYogi(FedAdam):
    """As FedAdam, with v ← v − (1 − β₂) Δ² sign(v − Δ²)."""

    rate = 0.01

    def second(self, v: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """v moves by the squares, never by more."""
        moved: NDArray[np.float64] = v - (1 - self._settings.beta_2) * squares * np.sign(v - squares)
        return moved


class FedAdagrad(FedAdam):
    """As FedAdam, with v ← v + Δ²."""

    def second(self, v: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """v adds up."""
        return v + squares


METHOD = Method(
    name="fedadam",
    title="FedAdam",
    about=(
        "When plain averages swing or creep. Costs the server two arrays the size of the model, and the sites "
        "nothing. No bias correction, v starts at ε², batch norm's statistics are averaged and not stepped along; "
        "Flower's version differs in all three."
    ),
    paper="Reddi et al., Adaptive Federated Optimization, ICLR 2021",
    summary="one model for all sites; the server takes Adam's steps along the mean of their changes",
    family="one model for all",
    partition=OneGroup(),
    clustered=False,
    rule="fedopt",
    training=FedAdam,
    settings_used=("fedopt.rate", "fedopt.beta_1", "fedopt.beta_2", "fedopt.epsilon"),
)

YOGI = METHOD.variant(
    name="fedyogi",
    title="FedYogi",
    about=(
        "As fedadam, where rare large changes should not shorten the steps for long. Costs the same; the same was "
        "found elsewhere."
    ),
    summary="as fedadam, with Yogi's second moment, which shrinks no faster than the squares allow",
    training=FedYogi,
)

ADAGRAD = METHOD.variant(
    name="fedadagrad",
    title="FedAdagrad",
    about=(
        "As fedadam, for runs whose steps should get shorter and shorter. Costs the same; the same was found elsewhere."
    ),
    summary="as fedadam, with all squares added up, so that steps only get shorter",
    training=FedAdagrad,
    settings_used=("fedopt.rate", "fedopt.beta_1", "fedopt.epsilon"),
)

METHODS = (METHOD, YOGI, ADAGRAD)
