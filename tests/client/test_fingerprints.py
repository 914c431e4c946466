"""What FECFL and PACFL send: means and subspaces, against slow versions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

from client.encoder import load_encoder
from client.fingerprints.mean import mean_feature
from client.fingerprints.subspace import subspace
from common.config import EncoderSettings
from common.mean_feature import InvalidMeanFeature, MeanFeature
from common.subspace import InvalidSubspace, Subspace


def test_the_mean_is_over_all_samples_and_accumulated_in_float64() -> None:
    rows = np.array([[1e8, 0], [1, 2], [-1e8, 4]], np.float32)
    assert mean_feature(rows).mean.tolist() == [np.float32(1 / 3), 2.0]


@given(st.integers(0, 2**32 - 1))
def test_a_subspace_holds_the_leading_directions_of_every_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 3, 5], [8, 4, 1])
    rows = rng.normal(size=(13, 20)).astype(np.float32)
    described = subspace(rows, labels, vectors=3)
    # 3 for the largest class, ceil(3 / 2) for the one half its size, 1 for the single sample.
    assert described.basis.shape == (20, 3 + 2 + 1)
    for label, count in ((0, 3), (3, 2), (5, 1)):
        leading = np.linalg.svd(rows[labels == label].T.astype(np.float64))[0][:, :count]
        np.testing.assert_allclose(subspace_angles(leading, described.basis.astype(np.float64)), 0, atol=1e-3)


def test_equal_shares_get_equally_many_directions() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    assert subspace(rows, np.repeat([0, 1], 10), vectors=3).basis.shape == (30, 6)


def test_copies_of_one_image_span_a_line_and_black_images_nothing() -> None:
    rows = np.ones((5, 4), np.float32)
    assert subspace(rows, np.zeros(5, np.int64), vectors=3).basis.shape == (4, 1)
    with pytest.raises(ValueError, match="no subspace"):
        subspace(0 * rows, np.zeros(5, np.int64), vectors=3)


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (np.eye(3), "float32"),
        (np.ones(3, np.float32), "2-dimensional"),
        (np.eye(3, dtype=np.float32)[:, :0], "impossible"),
        (np.ones((2, 3), np.float32), "impossible"),
        (np.full((3, 1), np.nan, np.float32), "finite"),
        (np.full((3, 1), 1e30, np.float32), "orthonormal"),
        (np.ones((3, 2), np.float32) / np.sqrt(3).astype(np.float32), "orthonormal"),
    ],
)
def test_bases_that_cannot_be_true_are_refused(basis: np.ndarray, reason: str) -> None:
    with pytest.raises(InvalidSubspace, match=reason):
        Subspace(basis)


@pytest.mark.parametrize(
    ("mean", "reason"),
    [
        (np.zeros(3), "float32"),
        (np.zeros((3, 1), np.float32), "1-dimensional"),
        (np.zeros(0, np.float32), "no dimensions"),
        (np.full(3, np.inf, np.float32), "finite"),
    ],
)
def test_means_that_cannot_be_true_are_refused(mean: np.ndarray, reason: str) -> None:
    with pytest.raises(InvalidMeanFeature, match=reason):
        MeanFeature(mean)


def test_pixels_are_an_encoder_without_a_network() -> None:
    encoder = load_encoder(EncoderSettings(name="pixels", image_size=8), seed=0)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    expected = images.transpose(0, 3, 1, 2).reshape(5, -1) / 255
    np.testing.assert_allclose(encoder.embed(images), expected, atol=1e-6)
    assert load_encoder(EncoderSettings(name="pixels"), seed=0).dimension == 3 * 32 * 32
