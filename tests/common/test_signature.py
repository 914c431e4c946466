"""Signatures: the invariants of the type, and the means and shares of FMCL section 1 against a slow version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from client.fingerprints.signature import signature
from common.signature import InvalidSignature, Signature
from common.site_card import SiteCard

VALID: dict[str, Any] = {
    "classes": np.array([0, 3]),
    "prototypes": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32),
    "shares": np.array([0.25, 0.75]),
}


@st.composite
def labelled_embeddings(draw: st.DrawFn) -> tuple[Any, Any]:
    count, dimension = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    values = st.floats(-1e6, 1e6, width=32)
    return (
        draw(arrays.arrays(np.float32, (count, dimension), elements=values)),
        draw(arrays.arrays(np.int64, count, elements=st.integers(0, 6))),
    )


@given(labelled_embeddings())
def test_equals_the_slow_version(case: tuple[Any, Any]) -> None:
    embeddings, labels = case
    result = signature(embeddings, labels)
    assert result.classes.tolist() == sorted(set(labels.tolist()))
    for row, label in enumerate(result.classes):
        members = [embeddings[i].tolist() for i in range(len(labels)) if labels[i] == label]
        mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
        np.testing.assert_allclose(result.prototypes[row], mean, rtol=1e-6, atol=1e-6)
        assert result.shares[row] == len(members) / len(labels)
        squares = [sum((x - m) ** 2 for x, m in zip(member, mean, strict=True)) for member in members]
        np.testing.assert_allclose(result.scatter[row], sum(squares) / len(members), rtol=1e-6, atol=1e-3)
    assert result.dimension == embeddings.shape[1]


@given(labelled_embeddings(), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(case: tuple[Any, Any], random: Any) -> None:
    embeddings, labels = case
    order = list(range(len(labels)))
    random.shuffle(order)
    first, second = signature(embeddings, labels), signature(embeddings[order], labels[order])
    np.testing.assert_array_equal(first.classes, second.classes)
    np.testing.assert_array_equal(first.shares, second.shares)
    np.testing.assert_allclose(first.prototypes, second.prototypes, rtol=1e-6, atol=1e-6)


def test_sums_are_accumulated_in_float64() -> None:
    # In float32 the ones vanish beside 2^24 and the mean is off by thousands.
    embeddings = np.ones((20_000, 1), np.float32)
    embeddings[0] = 2.0**24
    result = signature(embeddings, np.zeros(20_000, np.int64))
    assert result.prototypes[0, 0] == np.float32((2.0**24 + 19_999) / 20_000)


def test_no_samples_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(InvalidSignature, match="at least one class"):
        signature(np.empty((0, 4), np.float32), np.empty(0, np.int64))
    with pytest.raises(ValueError, match="3 embeddings and 2 labels"):
        signature(np.ones((3, 4), np.float32), np.zeros(2, np.int64))


def test_valid_signature() -> None:
    assert Signature(**VALID).dimension == 2
    assert Signature(**VALID, scatter=np.array([0.0, 2.5])).scatter.tolist() == [0.0, 2.5]


def test_a_signature_made_without_scatter_has_none() -> None:
    assert Signature(**VALID).scatter.tolist() == [0.0, 0.0]


def test_a_single_sample_has_no_scatter() -> None:
    card = SiteCard("a", 4, 1, (1, 0, 0, 3), 0, ())
    Signature(**VALID, scatter=np.array([0.0, 2.5])).check(card)
    with pytest.raises(InvalidSignature, match="single sample"):
        Signature(**VALID, scatter=np.array([0.1, 2.5])).check(card)
    one = signature(np.array([[1e6, -3.3]], np.float32), np.array([2]))
    assert one.scatter.tolist() == [0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": np.array([0, 3], np.int32)}, "classes must be a 1-dimensional int64"),
        ({"prototypes": np.ones((2, 2))}, "prototypes must be a 2-dimensional float32"),
        ({"prototypes": np.ones(2, np.float32)}, "prototypes must be a 2-dimensional float32"),
        ({"shares": [0.25, 0.75]}, "shares must be a 1-dimensional float64"),
        ({"prototypes": np.ones((3, 2), np.float32)}, "do not match"),
        ({"shares": np.array([1.0])}, "do not match"),
        ({"prototypes": np.ones((2, 0), np.float32)}, "no dimensions"),
        ({"classes": np.array([3, 0])}, "increasing"),
        ({"classes": np.array([3, 3])}, "increasing"),
        ({"classes": np.array([-1, 3])}, "non-negative"),
        ({"prototypes": np.array([[1, np.nan], [3, 4]], np.float32)}, "not finite"),
        ({"prototypes": np.array([[1, np.inf], [3, 4]], np.float32)}, "not finite"),
        ({"shares": np.array([0.0, 1.0])}, "lie in"),
        ({"shares": np.array([-0.5, 1.5])}, "lie in"),
        ({"shares": np.array([np.nan, 0.5])}, "lie in"),
        ({"shares": np.array([0.25, 0.25])}, "sum to 0.5"),
        ({"scatter": np.array([1, 2])}, "scatter must be a 1-dimensional float64"),
        ({"scatter": np.array([1.0])}, "do not match"),
        ({"scatter": np.array([1.0, -1e-9])}, "scatter must lie between 0"),
        ({"scatter": np.array([1.0, np.inf])}, "scatter must lie between 0"),
    ],
)
def test_broken_invariants_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSignature, match=message):
        Signature(**(VALID | change))


def test_a_signature_of_no_classes_is_refused() -> None:
    with pytest.raises(InvalidSignature, match="at least one class"):
        Signature(np.empty(0, np.int64), np.empty((0, 2), np.float32), np.empty(0))
