"""How much of the group's model, and how much of a model trained alone, is in what a site keeps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_HALVINGS = 60


def group_weight(group: Vector, own: Vector, say: Vector, *, for_group: float, for_own: float) -> float:
    """Return the w in [0, 1] that makes w p + (1 - w) q likeliest.

    It maximises Σ s_i log(w p_i + (1 - w) q_i) + a log w + b log(1 - w), which is concave: as if there were a further
    samples that only the group's model explains, and b that only the own one does. With few samples of its own a site
    keeps to a / (a + b).

    Parameters
    ----------
    group, own : float64[n]
        Probabilities p and q, above 0, that the two give to the true class of each sample.
    say : float64[n]
        How much each sample counts, s.
    for_group, for_own
        The numbers a and b; not both 0 where there are no samples.
    """

    def slope(weight: float) -> float:
        data = float((say * (group - own) / (weight * group + (1 - weight) * own)).sum())
        return data + for_group / weight - for_own / (1 - weight)

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return (low + high) / 2


def likelihood(weight: float, group: Vector, own: Vector, say: Vector, *, for_group: float, for_own: float) -> float:
    """Return what `group_weight` maximises, at a weight in (0, 1)."""
    data = float((say * np.log(weight * group + (1 - weight) * own)).sum())
    return data + for_group * float(np.log(weight)) + for_own * float(np.log1p(-weight))


def clearly_better(before: Vector, after: Vector, say: Vector) -> bool:
    """Whether log losses, float64[n] each, have fallen by more than the standard error of their mean difference."""
    weights = say / say.sum()
    gained = before - after
    mean = float(weights @ gained)
    # Of n effective samples; one alone says nothing.
    effective = 1 / float(weights @ weights)
    if effective < 2:
        return False
    variance = float(weights @ np.square(gained - mean)) / (effective - 1)
    return mean > math.sqrt(variance)
