"""Cosines, two-way splits and principal angles against slow, obvious versions, and what must not change them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from server.clustering import bipartition, cosine_distance, cosine_similarity, principal_angles, subspace_distance
from server.clustering import cosine as cosine_module

seeds = st.integers(0, 2**32 - 1)


def vectors(seed: int, count: int, length: int = 7) -> list[NDArray[np.float64]]:
    return list(np.random.default_rng(seed).normal(size=(count, length)))


def bases(seed: int, count: int, dimension: int = 6) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.normal(size=(dimension, rng.integers(1, 4))))[0] for _ in range(count)]


def slow_cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0


class TestCosine:
    @given(seeds, st.integers(1, 6))
    def test_equals_the_slow_version(self, seed: int, count: int) -> None:
        rows = vectors(seed, count)
        similarity = cosine_similarity(rows)
        for i, j in itertools.product(range(count), repeat=2):
            assert similarity[i, j] == pytest.approx(1 if i == j else slow_cosine(rows[i], rows[j]), abs=1e-12)
        np.testing.assert_array_equal(similarity, similarity.T)

    @given(seeds, st.integers(2, 6), st.randoms(use_true_random=False))
    def test_the_order_of_sites_only_permutes(self, seed: int, count: int, shuffle: object) -> None:
        rows = vectors(seed, count)
        order = list(range(count))
        shuffle.shuffle(order)  # type: ignore[attr-defined]
        expected = cosine_distance(rows)[np.ix_(order, order)]
        np.testing.assert_allclose(cosine_distance([rows[i] for i in order]), expected, atol=1e-12)

    @given(seeds, st.floats(1e-3, 1e3))
    def test_lengths_do_not_matter_and_duplicates_are_at_distance_zero(self, seed: int, scale: float) -> None:
        row = vectors(seed, 1)[0]
        np.testing.assert_allclose(cosine_distance([row, scale * row]), 0, atol=1e-12)

    def test_one_site(self) -> None:
        assert cosine_distance([np.ones(3)]).tolist() == [[0.0]]

    def test_a_vector_without_length_is_similar_to_itself_alone(self) -> None:
        assert cosine_similarity([np.zeros(2), np.ones(2)]).tolist() == [[1, 0], [0, 1]]

    def test_long_vectors_are_handled_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = vectors(0, 4, length=103)
        whole = cosine_similarity(rows)
        monkeypatch.setattr(cosine_module, "_CHUNK", 10)
        np.testing.assert_allclose(cosine_similarity(rows), whole, atol=1e-14)

    def test_large_and_tiny_float32_neither_overflow_nor_vanish(self) -> None:
        for scale in (1e30, 1e-30):
            pair = [np.array([scale, 0], np.float32), np.array([scale, scale], np.float32)]
            assert cosine_similarity(pair)[0, 1] == pytest.approx(math.sqrt(0.5))

    def test_what_cannot_be_compared_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            cosine_similarity([])
        with pytest.raises(ValueError, match="different shapes"):
            cosine_similarity([np.ones(2), np.ones(3)])


class TestBipartition:
    @given(seeds, st.integers(3, 6))
    def test_is_the_greedy_complete_linkage_split(self, seed: int, count: int) -> None:
        rows = vectors(seed, count)
        parts = [{i} for i in range(count)]
        while len(parts) > 2:
            pair = min(
                itertools.combinations(range(len(parts)), 2),
                key=lambda pair: max(1 - slow_cosine(rows[i], rows[j]) for i in parts[pair[0]] for j in parts[pair[1]]),
            )
            parts[pair[0]] |= parts.pop(pair[1])
        labels = bipartition(rows)
        assert {frozenset(np.flatnonzero(labels == label).tolist()) for label in (0, 1)} == set(map(frozenset, parts))
        assert labels[0] == 0

    def test_two_opposite_camps_are_told_apart(self) -> None:
        way = np.array([1.0, 2.0, -1.0])
        assert bipartition([way, -way, 2 * way, -3 * way, way]).tolist() == [0, 1, 0, 1, 0]

    def test_two_sites_part(self) -> None:
        assert bipartition([np.ones(2), np.ones(2)]).tolist() == [0, 1]


class TestAngles:
    @given(seeds)
    def test_equals_scipy(self, seed: int) -> None:
        first, second = bases(seed, 2)
        expected = np.sort(np.degrees(subspace_angles(first, second)))
        np.testing.assert_allclose(principal_angles(first, second), expected, atol=1e-5)

    def test_by_hand(self) -> None:
        axes = np.eye(3)
        tilted = np.array([[math.cos(math.radians(30))], [math.sin(math.radians(30))], [0]])
        assert principal_angles(axes[:, :1], tilted) == pytest.approx([30])
        assert principal_angles(axes[:, :2], axes[:, 1:]) == pytest.approx([0, 90])

    @given(seeds, st.sampled_from(["smallest", "sum"]))
    def test_the_matrix_is_the_angles_of_every_pair(self, seed: int, angle: str) -> None:
        spaces = bases(seed, 5)
        distance = subspace_distance(spaces, angle=angle)  # type: ignore[arg-type]
        for i, j in itertools.combinations(range(5), 2):
            angles = principal_angles(spaces[i], spaces[j])
            assert distance[i, j] == pytest.approx(angles[0] if angle == "smallest" else angles.sum(), abs=1e-5)
        np.testing.assert_array_equal(distance, distance.T)
        np.testing.assert_array_equal(np.diagonal(distance), 0)

    @given(seeds, st.sampled_from(["smallest", "sum"]))
    def test_neither_signs_nor_rotations_of_a_basis_matter(self, seed: int, angle: str) -> None:
        """An element-wise minimum of arccos(U^T V) turns 0 into 90 degrees when a sign flips; this must not."""
        rng = np.random.default_rng(seed)
        spaces = bases(seed, 4)
        turned = [
            space @ np.linalg.qr(rng.normal(size=(space.shape[1],) * 2))[0] * rng.choice([-1, 1], space.shape[1])
            for space in spaces
        ]
        before, after = (subspace_distance(some, angle=angle) for some in (spaces, turned))  # type: ignore[arg-type]
        np.testing.assert_allclose(after, before, atol=1e-5)

    def test_the_same_space_with_flipped_signs_is_at_distance_zero(self) -> None:
        basis = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 3)))[0].astype(np.float32)
        np.testing.assert_allclose(subspace_distance([basis, -basis]), 0, atol=1e-4)

    @given(seeds, st.randoms(use_true_random=False))
    def test_the_order_of_sites_only_permutes(self, seed: int, shuffle: object) -> None:
        spaces = bases(seed, 5)
        order = list(range(5))
        shuffle.shuffle(order)  # type: ignore[attr-defined]
        expected = subspace_distance(spaces)[np.ix_(order, order)]
        np.testing.assert_allclose(subspace_distance([spaces[i] for i in order]), expected, atol=1e-5)

    def test_one_and_two_sites(self) -> None:
        axes = np.eye(4)
        assert subspace_distance([axes[:, :2]]).tolist() == [[0.0]]
        np.testing.assert_allclose(subspace_distance([axes[:, :1], axes[:, 1:3]]), [[0, 90], [90, 0]])

    def test_what_cannot_be_compared_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            subspace_distance([])
        with pytest.raises(ValueError, match="different dimensions"):
            subspace_distance([np.eye(2), np.eye(3)])
