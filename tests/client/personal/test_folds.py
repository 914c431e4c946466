"""Folds: spread evenly, no group in two of them, and judged only where something can be learnt elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.personal.folds import deal_folds, judgeable, say_of_each

SITES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40)


def drawn(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(2, 6))
def test_every_class_and_the_whole_are_spread_evenly(classes: list[int], count: int) -> None:
    labels = np.array(classes)
    folds = deal_folds(labels, None, drawn(len(labels)), count)
    for of_class in (labels >= 0, *(labels == label for label in set(classes))):
        sizes = np.bincount(folds[of_class], minlength=count)
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(folds, deal_folds(labels, None, drawn(len(labels)), count))


@given(SITES, st.integers(2, 6))
def test_no_group_is_in_two_folds(samples: list[tuple[int, int]], count: int) -> None:
    labels, groups = np.array([label for label, _ in samples]), np.array([f"p{group}" for _, group in samples])
    folds = deal_folds(labels, groups, drawn(len(labels)), count)
    assert ((folds >= 0) & (folds < count)).all()
    for group in set(groups.tolist()):
        assert len(set(folds[groups == group].tolist())) == 1
    # As many folds are used as can be.
    assert len(set(folds.tolist())) == min(count, len(set(groups.tolist())))


@given(SITES, st.integers(2, 6))
def test_only_what_another_fold_can_teach_is_judged(samples: list[tuple[int, int]], count: int) -> None:
    labels, groups = np.array([label for label, _ in samples]), np.array([f"p{group}" for _, group in samples])
    for of in (None, groups):
        folds = deal_folds(labels, of, drawn(len(labels)), count)
        slow = [label in labels[folds != fold].tolist() for label, fold in zip(labels.tolist(), folds, strict=True)]
        assert judgeable(labels, folds).tolist() == slow


def test_one_sample_of_each_class_leaves_nothing_to_judge() -> None:
    labels = np.arange(7)
    assert not judgeable(labels, deal_folds(labels, None, drawn(7), 5)).any()
    assert not judgeable(np.zeros(1, np.int64), deal_folds(np.zeros(1, np.int64), None, drawn(1), 5)).any()


def test_a_patient_counts_as_one_sample() -> None:
    groups = np.array(["a", "a", "a", "b", "c", "c"])
    scored = np.array([True, True, False, True, True, True])
    assert say_of_each(groups, scored).tolist() == [0.5, 0.5, 1, 0.5, 0.5]
    assert say_of_each(None, scored).tolist() == [1, 1, 1, 1, 1]
    assert say_of_each(groups, scored).sum() == pytest.approx(3)
