"""A site's class shares: the formula, and that no class is ever impossible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.prior import class_shares

COUNTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=50)


def test_half_a_sample_is_added_to_every_class() -> None:
    np.testing.assert_allclose(class_shares(np.array([3, 0, 1])), [3.5 / 5.5, 0.5 / 5.5, 1.5 / 5.5], rtol=1e-15)


@given(COUNTS)
def test_shares_sum_to_one_and_none_is_zero(counts: list[int]) -> None:
    shares = class_shares(np.array(counts))
    assert shares.dtype == np.float64
    assert shares.sum() == pytest.approx(1, rel=1e-12)
    assert (shares > 0).all()
    assert np.isfinite(np.log(shares)).all()


@given(COUNTS)
def test_equal_counts_have_equal_shares_and_more_samples_a_larger_one(counts: list[int]) -> None:
    shares = class_shares(np.array(counts))
    for one, other in zip(range(len(counts) - 1), range(1, len(counts)), strict=True):
        assert np.sign(shares[one] - shares[other]) == np.sign(counts[one] - counts[other])


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=20))
def test_with_many_times_the_samples_shares_come_to_the_plain_ones(counts: list[int]) -> None:
    plain = np.array(counts) / sum(counts)
    far = np.abs(class_shares(np.array(counts)) - plain).max()
    near = np.abs(class_shares(1000 * np.array(counts)) - plain).max()
    assert near <= far / 500 + 1e-15


def test_a_federation_of_one_class_is_sure_of_it() -> None:
    assert class_shares(np.array([7])).tolist() == [1.0]


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_without_samples_all_classes_are_equal(classes: int) -> None:
    assert class_shares(np.zeros(classes, np.int64)).tolist() == [1 / classes] * classes


@given(COUNTS)
def test_the_order_of_the_classes_does_not_matter(counts: list[int]) -> None:
    order = np.random.default_rng(len(counts)).permutation(len(counts))
    np.testing.assert_array_equal(class_shares(np.array(counts)[order]), class_shares(np.array(counts))[order])
