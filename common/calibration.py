"""Whether a model's probabilities mean what they say, from the histograms that a test sends anyway.

Every class is looked at by itself, against all others, as for the AUC. The probability of a bin is that of its middle:
off by at most 0.013 with two classes and 0.04 with ten (a test compares).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.intervals import wilson
from common.metrics import BINS, LIMIT, RESOLUTION

STEPS = 10  # of a reliability curve


def bin_probabilities(classes: int) -> NDArray[np.float64]:
    """The probability in the middle of each bin, float64[BINS], ascending."""
    middles = (np.arange(BINS) + 0.5) / (BINS / 2) - 1
    odds = RESOLUTION * np.sinh(middles * math.asinh(LIMIT / RESOLUTION)) - math.log(max(classes - 1, 1))
    # Where exp would overflow the probability is 0 or 1 all the same.
    found: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
    return found


@dataclass(frozen=True)
class Step:
    """Scores of similar height: their mean, how many there are and how many of those are right (of their class)."""

    probability: float
    count: int
    hits: int

    @property
    def share(self) -> float:
        """How often the class is there."""
        return self.hits / self.count


def reliability(histograms: NDArray[np.int64]) -> list[Step]:
    """Steps of equal width from 0 to 1 over the scores of all classes, int64[2, C, BINS]; empty ones are left out."""
    classes = histograms.shape[1]
    probabilities = bin_probabilities(classes)
    steps = np.minimum((probabilities * STEPS).astype(np.int64), STEPS - 1)
    hits = histograms[0].sum(axis=0)
    counts = hits + histograms[1].sum(axis=0)
    found = []
    for step in range(STEPS):
        chosen = steps == step
        if count := int(counts[chosen].sum()):
            mean = float((counts[chosen] * probabilities[chosen]).sum() / count)
            found.append(Step(mean, count, int(hits[chosen].sum())))
    return found


def classwise_calibration_error(histograms: NDArray[np.int64]) -> float:
    """Mean over classes of Σ_b n_b/n |share_b − probability_b|: classwise ECE (Kull et al. 2019); NaN: no samples."""
    errors = []
    for label in range(histograms.shape[1]):
        # One class at a time, but with the prior odds of all.
        alone = np.zeros_like(histograms)
        alone[:, label] = histograms[:, label]
        steps = reliability(alone)
        if total := sum(step.count for step in steps):
            errors.append(sum(step.count * abs(step.share - step.probability) for step in steps) / total)
    return math.fsum(errors) / len(errors) if errors else math.nan


@dataclass(frozen=True)
class OperatingPoint:
    """Name the class from `threshold` on: how many of the class are found, and of the others spared.

    `low` and `high` bound the sensitivity (Wilson, 95 %).
    """

    threshold: float
    sensitivity: float
    low: float
    high: float
    specificity: float
    count: int


def operating_point(histograms: NDArray[np.int64], label: int, specificity: float) -> OperatingPoint | None:
    """The lowest threshold at which the specificity is reached; None where the class or its contrary has no samples."""
    positives, negatives = histograms[0, label], histograms[1, label]
    count, others = int(positives.sum()), int(negatives.sum())
    if not count or not others:
        return None
    spared = np.concatenate([[0], np.cumsum(negatives)])  # by a threshold before each bin, and behind the last
    place = int(np.argmax(spared >= math.ceil(specificity * others - 1e-9)))
    found = int(positives[place:].sum())
    probabilities = bin_probabilities(histograms.shape[1])
    threshold = float(probabilities[place]) if place < BINS else 1.0
    return OperatingPoint(threshold, found / count, *wilson(found, count), int(spared[place]) / others, count)
