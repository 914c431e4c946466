"""How well a model does on a site's test split, with noise: two numbers of each sample, in one release.

Most of the budget goes to how many samples are named right, because that is what everybody reads. The confusion matrix
is then made to agree with it. Histograms of scores, and the loss, would be noise alone: they are made from the matrix,
as of a model whose scores know only which class was named.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from client.privacy.noise import Source, blurred
from common.metrics import BINS, EvaluationStatistics, bins

_RIGHT, _MATRIX = 2 / 3, 1 / 3


def noisy(statistics: EvaluationStatistics, samples: int, *, sigma: float, source: Source) -> EvaluationStatistics:
    """The same with noise, as counts that can be: they add up to `samples`, which has been told before.

    Parameters
    ----------
    samples
        Of the test split, as was told.
    sigma
        Noise, in multiples of what one sample changes.
    """
    classes = len(statistics.confusion)
    right = float(blurred(np.trace(statistics.confusion), sigma / math.sqrt(_RIGHT), source))
    matrix = blurred(statistics.confusion, sigma / math.sqrt(_MATRIX), source)
    hits = int(np.clip(round(right), 0, samples))
    diagonal = np.eye(classes, dtype=bool)
    confusion = np.zeros((classes, classes), np.int64)
    confusion[diagonal] = whole(matrix[diagonal], hits)
    confusion[~diagonal] = whole(matrix[~diagonal], samples - hits)
    return EvaluationStatistics(confusion, _histograms(confusion), _loss(confusion))


def whole(values: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """The whole numbers ≥ 0 with this sum that are next to the values: all lowered alike, then rounded."""
    if not len(values) or total == 0:
        return np.zeros(len(values), np.int64)
    # Projection onto the simplex: how far all are lowered follows from how many stay above zero.
    ordered = np.sort(values)[::-1]
    lowered = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    level = lowered[np.flatnonzero(ordered > lowered)[-1]]
    exact = np.maximum(values - level, 0.0)
    found: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = total - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return found


def _histograms(confusion: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a score would be that knows only which class was named: how often that was right, or wrong."""
    classes = len(confusion)
    hits, named, truth = np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)
    others = confusion.sum() - named
    found = np.zeros((2, classes, BINS), np.int64)
    for label in range(classes):
        missed = truth[label] - hits[label]
        chances = np.array([hits[label] + 0.5, missed + 0.5]) / np.array([named[label] + 1.0, others[label] + 1.0])
        odds = np.zeros((2, classes))
        odds[:, 0] = np.log(chances / (1 - chances))
        yes, no = bins(odds)[:, 0]
        found[0, label, yes] += hits[label]
        found[0, label, no] += missed
        found[1, label, yes] += named[label] - hits[label]
        found[1, label, no] += others[label] - missed
    return found


def _loss(confusion: NDArray[np.int64]) -> float:
    """The cross-entropy of scores that know only which class was named: -Σ n_tp log (n_tp / n_p)."""
    found = confusion[confusion > 0] / np.broadcast_to(confusion.sum(axis=0), confusion.shape)[confusion > 0]
    return float(-(confusion[confusion > 0] * np.log(found)).sum()) + 0.0
