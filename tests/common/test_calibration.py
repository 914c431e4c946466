"""Calibration from histograms, against the same figures from single scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.calibration import STEPS, bin_probabilities, classwise_calibration_error, operating_point, reliability
from common.metrics import BINS, bins, from_logits, log_odds


def scored(seed: int, count: int, classes: int, sure: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = rng.normal(size=(count, classes)) * sure
    logits[np.arange(count), labels] += sure
    return logits, labels


def histograms(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return from_logits(logits, labels, np.zeros(len(labels))).histograms


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = values / values.sum(axis=1, keepdims=True)
    return shares


@pytest.mark.parametrize(("classes", "error"), [(2, 0.013), (10, 0.04)])
@pytest.mark.parametrize("sure", [0.02, 1.0, 100.0])
def test_a_bin_stands_for_the_probabilities_in_it(classes: int, error: float, sure: float) -> None:
    logits, _ = scored(0, 500, classes, sure)
    probabilities = bin_probabilities(classes)
    assert np.abs(probabilities[bins(log_odds(logits))] - softmax(logits)).max() <= error
    assert (np.diff(probabilities) >= 0).all()


@pytest.mark.parametrize("classes", [2, 5])
def test_the_error_is_that_of_single_scores(classes: int) -> None:
    logits, labels = scored(1, 4000, classes, 1.5)
    probabilities = softmax(logits)
    slow = []
    for label in range(classes):
        error = 0.0
        for step in range(STEPS):
            chosen = [
                (p, int(truth == label))
                for p, truth in zip(probabilities[:, label], labels, strict=True)
                if min(int(p * STEPS), STEPS - 1) == step
            ]
            if chosen:
                error += abs(sum(hit for _, hit in chosen) - sum(p for p, _ in chosen)) / len(labels)
        slow.append(error)
    # A score near the edge of a step may fall into its neighbour.
    assert classwise_calibration_error(histograms(logits, labels)) == pytest.approx(math.fsum(slow) / classes, abs=0.01)


def test_a_model_that_says_what_it_knows_is_calibrated() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(60_000, 3)) * 2
    shares = softmax(logits).cumsum(axis=1)
    labels = (rng.random(len(logits))[:, None] > shares).sum(axis=1)
    assert classwise_calibration_error(histograms(logits, labels)) < 0.01
    # Twice as sure, it says more than it knows.
    assert classwise_calibration_error(histograms(2 * logits, labels)) > 0.05


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_the_operating_point_is_the_first_that_spares_enough(seed: int, count: int, specificity: float) -> None:
    logits, labels = scored(seed, count, 2, 1.0)
    counts = histograms(logits, labels)
    found = operating_point(counts, 1, specificity)
    if len(set(labels.tolist())) < 2:
        assert found is None
        return
    assert found is not None
    places = bins(log_odds(logits))[:, 1]
    slow = next(
        (place, spared)
        for place in range(BINS + 1)
        if (spared := np.mean(places[labels == 0] < place)) >= specificity - 1e-9
    )
    assert found.specificity == pytest.approx(slow[1])
    assert found.sensitivity == pytest.approx(np.mean(places[labels == 1] >= slow[0]))
    assert found.low <= found.sensitivity <= found.high


def test_pooling_sites_and_their_order_change_nothing() -> None:
    logits, labels = scored(3, 300, 4, 1.0)
    whole = histograms(logits, labels)
    parts = [histograms(logits[part], labels[part]) for part in np.array_split(np.arange(300)[::-1], 7)]
    assert reliability(whole) == reliability(sum(parts[1:], parts[0]))
    assert reliability(np.zeros_like(whole)) == []
    assert math.isnan(classwise_calibration_error(np.zeros_like(whole)))
