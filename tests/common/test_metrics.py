from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from common.metrics import (
    BINS,
    LIMIT,
    RESOLUTION,
    EvaluationStatistics,
    InvalidStatistics,
    bins,
    check,
    from_logits,
    log_odds,
    pool,
    site_spread,
    summarise,
)

Scores = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]


def draw(seed: int, count: int, classes: int, spread: float = 2.0) -> Scores:
    """Log-probabilities that lean towards the truth."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = rng.normal(size=(count, classes)) * spread
    logits[np.arange(count), labels] += 1.0
    scores = log_softmax(logits, axis=1)
    return scores, labels, -scores[np.arange(count), labels]


def slow_auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    areas = [
        roc_auc_score(labels == c, scores[:, c])
        for c in range(scores.shape[1])
        if 0 < np.count_nonzero(labels == c) < len(labels)
    ]
    return float(np.mean(areas)) if areas else math.nan


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 6))
def test_accuracy_and_macro_f1_are_those_of_sklearn(seed: int, count: int, classes: int) -> None:
    scores, labels, losses = draw(seed, count, classes)
    metrics = summarise(from_logits(scores, labels, losses))
    predicted = scores.argmax(axis=1)
    assert metrics.accuracy == accuracy_score(labels, predicted)
    assert metrics.macro_f1 == pytest.approx(f1_score(labels, predicted, average="macro"), rel=1e-12)
    assert metrics.loss == pytest.approx(losses.mean(), rel=1e-12)
    assert metrics.count == count


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 6), st.sampled_from([1e-3, 1.0, 100.0, 1e4]))
def test_log_odds_are_those_of_the_slow_sum_however_sure_the_model(
    seed: int, count: int, classes: int, spread: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=(count, classes)) * spread
    found = log_odds(logits)
    for row in range(count):
        for c in range(classes):
            others = np.delete(logits[row], c)
            slow = logits[row, c] - logsumexp(others) if len(others) else math.inf
            assert found[row, c] == pytest.approx(slow, rel=1e-9, abs=1e-12)
    # What is added to all logits of a sample, the log of softmax's sum among it, makes no difference.
    np.testing.assert_allclose(log_odds(logits - 3.0), found, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 80), st.integers(2, 5))
def test_auc_is_exact_where_every_pair_of_scores_is_in_different_bins(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    # Of two classes: the log-odds of the one are those of the other with another sign.
    centres = RESOLUTION * np.sinh(
        ((rng.permutation(BINS)[:count] + 0.5) * 2 / BINS - 1) * math.asinh(LIMIT / RESOLUTION)
    )
    logits = np.zeros((count, 2))
    logits[:, 1] = centres
    labels = labels % 2
    auc = summarise(from_logits(logits, labels, np.zeros(count))).auc
    assert auc == pytest.approx(slow_auc(log_odds(logits), labels), rel=1e-12, nan_ok=True)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 200),
    st.integers(2, 5),
    st.floats(1e-4, 1e4, allow_nan=False),
    st.floats(-1.0, 3.0, allow_nan=False),
)
def test_auc_is_off_by_no_more_than_half_the_pairs_that_share_a_bin(
    seed: int, count: int, classes: int, scale: float, signal: float
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = rng.normal(size=(count, classes))
    logits[np.arange(count), labels] += signal
    logits *= scale
    odds = log_odds(logits)
    place = bins(odds)
    shared = []
    for c in range(classes):
        is_c = labels == c
        if 0 < is_c.sum() < count:
            shared.append(np.mean(place[is_c, c][:, None] == place[~is_c, c]))
    auc = summarise(from_logits(logits, labels, np.zeros(count))).auc
    if not shared:
        assert math.isnan(auc)
        return
    assert abs(auc - slow_auc(odds, labels)) <= np.mean(shared) / 2 + 1e-12


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale", [0.02, 1.0, 100.0])
@pytest.mark.parametrize("signal", [0.2, 1.0, 3.0])
def test_auc_is_close_for_models_that_are_unsure_and_for_models_that_are_very_sure(
    classes: int, scale: float, signal: float
) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 10_000)
    logits = rng.normal(size=(len(labels), classes))
    logits[np.arange(len(labels)), labels] += signal
    logits *= scale
    auc = summarise(from_logits(logits, labels, np.zeros(len(labels)))).auc
    assert auc == pytest.approx(slow_auc(log_odds(logits), labels), abs=4e-4)


def test_scores_beyond_all_bins_are_counted() -> None:
    scores = np.array([[0.0, -1e30], [-1e30, 0.0], [-1e30, 0.0]])
    statistics = from_logits(scores, np.array([0, 1, 1]), np.zeros(3))
    check(statistics, 2)
    assert summarise(statistics).auc == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 20), min_size=1, max_size=5), st.randoms())
def test_pooling_is_the_statistics_of_all_samples_in_any_order(seed: int, counts: list[int], random: Any) -> None:
    parts = [draw(seed + place, count, 3) for place, count in enumerate(counts)]
    together = from_logits(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    pooled = pool([from_logits(*part) for part in parts])
    np.testing.assert_array_equal(pooled.confusion, together.confusion)
    np.testing.assert_array_equal(pooled.histograms, together.histograms)
    assert pooled.loss_sum == pytest.approx(together.loss_sum, rel=1e-12)
    random.shuffle(parts)
    assert pool([from_logits(*part) for part in parts]).loss_sum == pooled.loss_sum


def test_what_is_undefined_is_nan() -> None:
    one_class = summarise(from_logits(np.log([[0.9, 0.1]]), np.array([0]), np.array([0.1])))
    assert math.isnan(one_class.auc)
    assert (one_class.accuracy, one_class.macro_f1) == (1.0, 1.0)
    nothing = summarise(from_logits(np.zeros((0, 2)), np.zeros(0, np.int64), np.zeros(0)))
    assert math.isnan(nothing.accuracy)
    assert math.isnan(nothing.loss)
    assert nothing.count == 0
    with pytest.raises(ValueError, match="nothing to pool"):
        pool([])


@pytest.mark.parametrize(
    ("scores", "labels"), [([[math.nan, 0.5]], [0]), ([[0.5, 0.5]], [2]), ([[0.5, 0.5]], [-1]), ([[0.5, 0.5]], [0, 1])]
)
def test_bad_scores_and_labels_are_refused(scores: list[list[float]], labels: list[int]) -> None:
    with pytest.raises(ValueError, match=r"finite|labels"):
        from_logits(np.array(scores), np.array(labels), np.zeros(len(scores)))


def bumped(array: NDArray[np.int64], place: tuple[int, ...], by: int) -> NDArray[np.int64]:
    changed = array.copy()
    changed[place] += by
    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, confusion=s.confusion.astype(np.int32)),
        lambda s: replace(s, confusion=s.confusion[:2, :2]),
        lambda s: replace(s, histograms=s.histograms[:, :, 1:]),
        lambda s: replace(s, confusion=bumped(s.confusion, (0, 1), -1000)),
        lambda s: replace(s, confusion=bumped(s.confusion, (0, 1), 1)),
        lambda s: replace(s, confusion=bumped(s.confusion, (0, 1), 2**62)),
        lambda s: replace(s, histograms=bumped(s.histograms, (0, 1, 7), 1)),
        lambda s: replace(s, histograms=bumped(s.histograms, (1, 1, 7), 1)),
        lambda s: replace(s, histograms=bumped(bumped(s.histograms, (0, 0, 7), -1000), (0, 0, 8), 1000)),
        lambda s: replace(s, loss_sum=math.nan),
        lambda s: replace(s, loss_sum=math.inf),
        lambda s: replace(s, loss_sum=-1.0),
    ],
)
def test_statistics_that_contradict_themselves_are_refused(change: Any) -> None:
    statistics: EvaluationStatistics = from_logits(*draw(3, 50, 3))
    check(statistics, 3)
    with pytest.raises(InvalidStatistics):
        check(change(statistics), 3)


def test_site_spread() -> None:
    assert site_spread([0.5]) == (0.5, 0.5)
    assert site_spread([0.75, 0.25]) == (0.5, 0.25)
    mean, worst = site_spread([1.0] * 9 + [0.5, 0.25])
    assert mean == pytest.approx(9.75 / 11)
    assert worst == 0.375
    assert all(math.isnan(value) for value in site_spread([]))
