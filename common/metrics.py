"""How good a model is, from counts that can be pooled over sites.

A site sends a confusion matrix, two histograms of scores per class and its summed loss: enough for accuracy, macro-F1
and AUC of all sites together, while no single prediction leaves the site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Scores are binned by their log-odds, counted from those of a model that knows nothing, −ln(C − 1): a network is unsure
# after few rounds and all its scores lie close to there; later it may be very sure. asinh has bins of equal width up to
# about RESOLUTION and of equal ratio beyond, so that neither loses the ranks.
BINS = 256
RESOLUTION = 0.01
LIMIT = 2_000.0

# No site has more samples than this; it keeps the sums over all sites far from overflow.
_MOST_SAMPLES = 2**40


class InvalidStatistics(ValueError):
    """Statistics that contradict themselves; the message says how."""


@dataclass(frozen=True)
class EvaluationStatistics:
    """Sufficient statistics of one evaluation.

    Attributes
    ----------
    confusion : int64[C, C]
        Samples by true class (row) and predicted class (column).
    histograms : int64[2, C, BINS]
        Log-odds of the score of class c, among the samples that are of class c (0) and those that are not (1).
    loss_sum : float
        Cross-entropy, summed over the samples.
    """

    confusion: NDArray[np.int64]
    histograms: NDArray[np.int64]
    loss_sum: float


@dataclass(frozen=True)
class Metrics:
    """What a reader sees of an evaluation. All but `count` are NaN where undefined.

    `naming` is the accuracy of always naming the class that is most frequent among these samples.
    """

    accuracy: float
    macro_f1: float
    auc: float
    loss: float
    count: int
    naming: float = math.nan


def from_logits(
    logits: NDArray[np.floating], labels: NDArray[np.int64], losses: NDArray[np.floating]
) -> EvaluationStatistics:
    """Count predictions: logits [n, C], which may be log-probabilities, labels int64[n] in 0..C-1, losses [n]."""
    count, classes = logits.shape
    if labels.shape != (count,) or losses.shape != (count,):
        raise ValueError(f"{count} rows of scores, {len(labels)} labels and {len(losses)} losses do not match")
    if count and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}")
    if not np.isfinite(logits).all():
        raise ValueError("the model's scores are not finite")
    predicted = logits.argmax(axis=1)
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    negative = labels[:, None] != np.arange(classes)
    cells = (negative * classes + np.arange(classes)) * BINS + bins(log_odds(logits))
    histograms = np.bincount(cells.ravel(), minlength=2 * classes * BINS).reshape(2, classes, BINS)
    return EvaluationStatistics(confusion.astype(np.int64), histograms.astype(np.int64), math.fsum(losses.tolist()))


def log_odds(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """ln p_c / (1 − p_c) = z_c − ln Σ_{j≠c} exp(z_j), float64[n, C]; exact where p_c itself would round to 0 or 1."""
    wide = logits.astype(np.float64)
    count, classes = wide.shape
    # The sum over the others is that of all before and all after: subtracting from the whole would cancel.
    before = np.full((count, classes + 1), -np.inf)
    after = before.copy()
    before[:, 1:] = np.logaddexp.accumulate(wide, axis=1)
    after[:, :-1] = np.logaddexp.accumulate(wide[:, ::-1], axis=1)[:, ::-1]
    odds: NDArray[np.float64] = wide - np.logaddexp(before[:, :-1], after[:, 1:])
    return odds


def bins(odds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Place of each of the log-odds [n, C] among the BINS."""
    classes = odds.shape[1]
    shifted = np.clip(odds + math.log(max(classes - 1, 1)), -LIMIT, LIMIT)
    place = (np.arcsinh(shifted / RESOLUTION) / math.asinh(LIMIT / RESOLUTION) + 1) * (BINS / 2)
    found: NDArray[np.int64] = np.minimum(place.astype(np.int64), BINS - 1)
    return found


def pool(statistics: Sequence[EvaluationStatistics]) -> EvaluationStatistics:
    """Return the statistics of all samples together, the same bits in any order."""
    if not statistics:
        raise ValueError("there is nothing to pool")
    return EvaluationStatistics(
        np.sum([item.confusion for item in statistics], axis=0),
        np.sum([item.histograms for item in statistics], axis=0),
        math.fsum(item.loss_sum for item in statistics),
    )


def check(statistics: EvaluationStatistics, classes: int) -> None:
    """Raise `InvalidStatistics` unless the statistics can come from an evaluation over `classes` classes."""
    confusion, histograms = statistics.confusion, statistics.histograms
    for name, array, shape in (
        ("the confusion matrix", confusion, (classes, classes)),
        ("the score histograms", histograms, (2, classes, BINS)),
    ):
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.shape != shape:
            raise InvalidStatistics(f"{name} must be an int64 array of shape {shape}")
        if array.min() < 0 or array.max() > _MOST_SAMPLES:
            raise InvalidStatistics(f"{name} must hold counts from 0 to {_MOST_SAMPLES}")
    truth = confusion.sum(axis=1)
    if (histograms[0].sum(axis=1) != truth).any() or (histograms[1].sum(axis=1) != truth.sum() - truth).any():
        raise InvalidStatistics("the score histograms do not add up to the confusion matrix")
    if not math.isfinite(statistics.loss_sum) or statistics.loss_sum < 0:
        raise InvalidStatistics(f"the summed loss is {statistics.loss_sum}, not a finite number of 0 or more")


def summarise(statistics: EvaluationStatistics) -> Metrics:
    """Turn statistics into metrics.

    Macro-F1 is the mean over the classes that occur as truth or as prediction; AUC is the mean of the one-vs-rest
    areas of the classes that have both positives and negatives, where two scores in one bin count as a tie.
    """
    confusion = statistics.confusion
    count = int(confusion.sum())
    if count == 0:
        return Metrics(math.nan, math.nan, math.nan, math.nan, 0)
    hits = np.diag(confusion)
    occurrences = confusion.sum(axis=0) + confusion.sum(axis=1)
    present = occurrences > 0
    return Metrics(
        accuracy=float(hits.sum() / count),
        macro_f1=float(np.mean(2 * hits[present] / occurrences[present])),
        auc=_macro_auc(statistics.histograms),
        loss=statistics.loss_sum / count,
        count=count,
        naming=float(confusion.sum(axis=1).max() / count),
    )


def _macro_auc(histograms: NDArray[np.int64]) -> float:
    positives, negatives = histograms.astype(np.float64)
    below = np.cumsum(negatives, axis=1) - negatives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    defined = pairs > 0
    if not defined.any():
        return math.nan
    return float(np.mean((positives * below).sum(axis=1)[defined] / pairs[defined]))


def site_spread(accuracies: Sequence[float]) -> tuple[float, float]:
    """Return the mean over N sites and the mean of the worst tenth, the ceil(N / 10) lowest; NaN for no sites."""
    if not accuracies:
        return math.nan, math.nan
    ascending = sorted(accuracies)
    worst = ascending[: -(-len(ascending) // 10)]
    return math.fsum(ascending) / len(ascending), math.fsum(worst) / len(worst)
