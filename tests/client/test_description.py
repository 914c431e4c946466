"""How far a site is from what it was: against slow versions, calibrated by chance, and loud where it should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, norm

from client.fingerprints.description import CERTAIN, change, describe
from client.fingerprints.signature import signature

CLASSES, WIDTH = 4, 30
Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


def drawn(rng: np.random.Generator, counts: list[int], shift: float = 0.0) -> Samples:
    """Samples around one mean per class, with a few directions that vary far more than the others."""
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = np.random.default_rng(7).normal(size=(len(counts), WIDTH))
    noise = rng.normal(size=(len(labels), WIDTH)) * np.linspace(3, 0.2, WIDTH)
    return (centres[labels] + shift + noise).astype(np.float32), labels


def test_scatter_and_spread_are_those_of_the_definition() -> None:
    embeddings, labels = drawn(np.random.default_rng(0), [5, 1, 9])
    found = describe(embeddings, labels)
    sent = signature(embeddings, labels)
    np.testing.assert_array_equal(found.classes, sent.classes)
    np.testing.assert_array_equal(found.means, sent.prototypes)
    for row, label in enumerate(found.classes):
        mine = embeddings[labels == label].astype(np.float64)
        slow = sum(float(((one - mine.mean(axis=0)) ** 2).sum()) for one in mine) / len(mine)
        assert found.scatter[row] == pytest.approx(slow, rel=1e-6, abs=1e-9)
    within = sum(((embeddings[labels == c] - embeddings[labels == c].mean(axis=0)) ** 2).sum() for c in found.classes)
    assert found.pooled == pytest.approx(float(within) / (15 - 3), rel=1e-6)


def test_the_spread_is_without_bias() -> None:
    truth = float((np.linspace(3, 0.2, WIDTH) ** 4).sum())
    rng = np.random.default_rng(1)
    found = [describe(*drawn(rng, [6, 6, 6])).spread for _ in range(400)]
    assert np.mean(found) == pytest.approx(truth, rel=0.1)


def test_shares_alone_give_the_chi_square_test() -> None:
    rng = np.random.default_rng(0)
    before, after = drawn(rng, [40, 40, 0]), drawn(rng, [20, 30, 30])
    # Without any width the means say nothing.
    flat = [describe(np.ones((len(labels), 1), np.float32), labels) for _, labels in (before, after)]
    slow = chi2_contingency([[40, 40, 0], [20, 30, 30]], correction=False).pvalue
    assert change(*flat) == pytest.approx(norm.isf(2 * slow))


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [30, 5, 1, 0], [60, 60, 60, 60], [20]])
def test_drawing_anew_from_the_same_site_raises_no_hand(counts: list[int]) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(300):
        again = rng.multinomial(sum(counts), np.array(counts) / sum(counts)).tolist()
        found.append(change(describe(*drawn(rng, counts)), describe(*drawn(rng, again))))
    # By chance 2.3 % of normal deviates exceed 2, 0.13 % exceed 3.
    assert np.mean(np.array(found) > 2) < 0.06
    assert max(found) < 4


@settings(max_examples=25)
@given(seed=st.integers(0, 999), scale=st.floats(0.01, 100))
def test_neither_scale_nor_order_matters_and_nothing_is_nothing(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    (before, labels), (after, later) = drawn(rng, [8, 8, 8]), drawn(rng, [8, 8, 8], shift=0.5)
    plain = change(describe(before, labels), describe(after, later))
    shuffled = np.random.default_rng(seed).permutation(len(later))
    again = change(
        describe(np.float32(scale) * before, labels),
        describe(np.float32(scale) * after[shuffled], later[shuffled]),
    )
    assert again == pytest.approx(plain, rel=1e-3, abs=1e-3)
    assert change(describe(before, labels), describe(before, labels)) == 0


def test_other_classes_and_other_images_are_seen_and_more_of_them_more() -> None:
    rng = np.random.default_rng(0)
    before = drawn(rng, [30, 30, 0, 0])
    levels = []
    for part in (0, 5, 10, 20, 30):
        kept = drawn(np.random.default_rng(9), [30 - part, 30 - part, part, part])
        levels.append(change(describe(*before), describe(*kept)))
    assert levels == sorted(levels)
    assert levels[0] < 3
    assert levels[-1] > 6
    assert change(describe(*before), describe(*drawn(rng, [30, 30], shift=3.0))) > 10
    assert change(describe(*before), describe(*drawn(rng, [0, 0, 3000, 3000]))) <= CERTAIN


def test_one_sample_per_class_and_one_class_say_what_they_can() -> None:
    ones = describe(np.eye(3, dtype=np.float32), np.arange(3))
    assert (ones.pooled, ones.spread) == (0.0, 0.0)
    assert change(ones, ones) == 0
    one = describe(np.eye(3, dtype=np.float32), np.zeros(3, np.int64))
    assert change(one, one) == 0
