"""Noise has the variance that was promised, and what it is added to is as short as was promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest

from client.privacy.description import CENTRE, SUMS, Released, describe
from client.privacy.noise import SeededSource, Source, SystemSource, blurred, clipped
from client.privacy.plan import plan_of
from client.privacy.statistics import noisy, whole
from common.metrics import EvaluationStatistics, check, from_logits, summarise
from common.privacy import PrivacySettings

SOURCES = [SystemSource(), SeededSource(0, "test", "a", 1)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("deviation", [0.3, 7.0])
def test_noise_is_normal_with_the_deviation_asked_for(source: Source, deviation: float) -> None:
    found = blurred(np.full((200, 100), 5.0), deviation, source) - 5
    # Five standard errors; the system's source would fail this once in millions of runs.
    assert abs(found.mean()) < 5 * deviation / np.sqrt(found.size)
    assert abs(found.var() / deviation**2 - 1) < 5 * np.sqrt(2 / found.size)
    assert kstest(found.ravel() / deviation, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 0.4


@pytest.mark.parametrize("source", SOURCES)
def test_lots_are_uniform(source: Source) -> None:
    found = source.uniform(20_000)
    assert found.min() > 0
    assert found.max() <= 1
    assert kstest(found, "uniform").pvalue > 1e-6


def test_a_real_site_never_draws_the_same_and_a_simulated_one_by_its_name_and_round() -> None:
    assert not np.array_equal(SystemSource().normal((8,)), SystemSource().normal((8,)))
    draws = [
        SeededSource(*key).normal((8,)).tobytes()
        for key in ((0, "x", "a", 1), (1, "x", "a", 1), (0, "y", "a", 1), (0, "x", "b", 1), (0, "x", "a", 2))
    ]
    assert len(set(draws)) == 5
    assert SeededSource(0, "x", "a", 1).normal((8,)).tobytes() == draws[0]


def test_low_bits_tell_nothing_of_the_value() -> None:
    """Everything that is sent lies on one grid, wherever the value was (Mironov 2012)."""
    for value in (0.0, 1 / 3, 1e-9):
        found = blurred(np.full(100, value), 2.0, SystemSource()) / (2.0 / 2**24)
        np.testing.assert_array_equal(found, np.rint(found))


@given(arrays(np.float32, (5, 4), elements=st.floats(-1e6, 1e6, width=32)), st.floats(0.01, 100))
def test_no_row_is_longer_than_the_bound_and_short_ones_stay(rows: np.ndarray, length: float) -> None:
    found = clipped(rows, length)
    assert (np.linalg.norm(found, axis=1) <= length).all()
    short = np.linalg.norm(rows.astype(np.float64), axis=1) < 0.99 * length
    np.testing.assert_array_equal(found[short], rows[short])


def described(embeddings: np.ndarray, labels: np.ndarray, sigma: float, seed: int, classes: int = 3) -> Released:
    return describe(
        labels, classes, 30, embeddings, frozenset({SUMS, CENTRE}),
        length=2.0, sigma=sigma, test_sigma=sigma, source=SeededSource(seed, "test", "a", 0),
    )  # fmt: skip


def test_a_description_has_the_noise_of_one_release() -> None:
    """One sample more changes everything together, in units of its noise, by 1 / σ: that is what is paid for."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(50, 6)).astype(np.float32) * 9, rng.integers(0, 3, 50)
    sigma = 4.0
    many = [described(rows, labels, sigma, seed) for seed in range(400)]
    deviations = {
        "counts": np.std([one.counts for one in many]),
        "sums": np.std(np.array([one.sums for one in many]) - np.mean([one.sums for one in many], axis=0)),
        "centre": np.std(np.array([one.centre for one in many]) - np.mean([one.centre for one in many], axis=0)),
    }
    counts = np.std(np.array([one.counts for one in many]) - np.mean([one.counts for one in many], axis=0))
    assert counts == pytest.approx(many[0].blur, rel=0.05)
    assert deviations["sums"] == pytest.approx(many[0].sums_blur, rel=0.05)
    # With next to no noise the change of one sample more is seen, and its length is what the noise was made for.
    exact, more = (described(rows[:end], labels[:end], 1e-9, 0) for end in (49, 50))
    change = {
        "counts": np.linalg.norm(more.counts - exact.counts),
        "sums": np.linalg.norm(more.sums - exact.sums),
        "centre": np.linalg.norm(more.centre - exact.centre),
    }
    together = (change["counts"] / counts) ** 2 + sum(
        (change[one] / deviations[one]) ** 2 for one in ("sums", "centre")
    )
    assert np.sqrt(together) == pytest.approx(1 / sigma, rel=0.05)


def test_with_little_noise_a_description_is_the_signature_of_the_clipped_embeddings() -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 2, 60)
    rows *= 2 / np.linalg.norm(rows, axis=1, keepdims=True)
    found = described(rows, labels, 1e-6, 0)
    said = found.signature(2.0)
    np.testing.assert_array_equal(found.told, [*np.bincount(labels), 0])
    for place, label in enumerate((0, 1)):
        own = rows[labels == label]
        np.testing.assert_allclose(said.prototypes[place], own.mean(axis=0), atol=2e-3)
        assert said.scatter[place] == pytest.approx(np.square(own - own.mean(axis=0)).sum(axis=1).mean(), rel=0.02)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), atol=2e-3)
    assert (found.samples, found.test_samples) == (60, 30)


def test_the_scatter_says_how_far_noise_puts_a_prototype_off() -> None:
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(90, 40)).astype(np.float32), np.zeros(90, np.int64)
    rows *= 2 / np.linalg.norm(rows, axis=1, keepdims=True)
    many = [described(rows, labels, 3.0, seed, classes=1) for seed in range(300)]
    means = np.array([one.sums[0] / one.samples for one in many])
    off = np.square(means - rows.mean(axis=0)).sum(axis=1).mean()
    said = np.mean([one.signature(2.0).scatter[0] / one.samples for one in many])
    # Beside the noise there is the scatter of 90 samples of length 2.
    assert said == pytest.approx(off + 4 / 90, rel=0.1)


def test_who_has_nothing_to_tell_of_still_says_a_number() -> None:
    found = described(np.zeros((1, 4), np.float32), np.zeros(1, np.int64), 1e-6, 0)
    assert found.samples >= 1
    assert len(found.signature(2.0).classes) == 1


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.integers(0, 200))
def test_whole_numbers_add_up_and_stay_in_order(values: list[float], total: int) -> None:
    found = whole(np.array(values), total)
    assert found.sum() == total
    assert found.min() >= 0
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= -1).all()


def test_statistics_with_noise_are_valid_and_right_on_average() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 80)
    logits = rng.normal(size=(80, 4)) + 2 * np.eye(4)[labels]
    exact = from_logits(logits, labels, np.ones(80))
    found: list[EvaluationStatistics] = []
    for seed in range(300):
        found.append(noisy(exact, 80, sigma=2.0, source=SeededSource(seed, "t", "a", 1)))
        check(found[-1], 4)
        assert found[-1].confusion.sum() == 80
        assert np.isfinite(summarise(found[-1]).auc)
    right = np.array([np.trace(one.confusion) for one in found])
    truth = np.trace(exact.confusion)
    assert abs(right.mean() - truth) < 5 * right.std() / np.sqrt(300)
    # σ / √(2/3), and rounding to whole numbers.
    assert right.std() == pytest.approx(np.sqrt(4 * 1.5 + 1 / 12), rel=0.15)


def test_hardly_any_noise_leaves_the_matrix_as_it_is() -> None:
    labels = np.repeat(np.arange(3), 10)
    exact = from_logits(np.eye(3)[(labels + (np.arange(30) % 5 == 0)) % 3] * 4, labels, np.ones(30))
    found = noisy(exact, 30, sigma=1e-6, source=SeededSource(0, "t", "a", 1))
    np.testing.assert_array_equal(found.confusion, exact.confusion)
    # A model whose scores know only the class that was named: its area is half of both rates.
    for label in range(3):
        positives, negatives = found.histograms[:, label]
        assert positives.sum() == 10
        assert negatives.sum() == 20


def test_noise_is_the_least_with_which_the_budget_lasts() -> None:
    from client.privacy.accountant import Release, epsilon

    settings = PrivacySettings(epsilon=2.0, descriptions=2, steps=30, tests=3, rate=0.2)
    plan = plan_of(settings)
    train = [Release(plan.description, times=2), Release(plan.step, 0.2, 30)]
    test = [Release(plan.tested, times=2), Release(plan.test, times=3)]
    for parts in (train, test):
        assert 1.97 < epsilon(parts, settings.delta) <= 2.0
    only = plan_of(PrivacySettings(epsilon=2.0, steps=0, tests=0))
    assert epsilon([Release(only.description)], 1e-5) <= 2.0
    assert epsilon([Release(only.tested)], 1e-5) <= 2.0
