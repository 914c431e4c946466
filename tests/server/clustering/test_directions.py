"""Distances by norms, leading directions, k-means and matched labels, each against a slow obvious version."""

from __future__ import annotations

import time
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from server.clustering import decomposed_cosines, k_means, leading_coordinates, matched, norm_distance
from server.clustering.directions import by_first_member

ROWS = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-10, 10, width=16))
# Vector J of the spec.
J = np.array([(2, 0, 0), (1, 0.2, 0), (0, 1, 0), (0, 3, 0.3)])


@given(ROWS)
def test_norms_are_those_of_the_differences(rows: np.ndarray) -> None:
    for norm, order in (("l1", 1), ("l2", 2)):
        distance = norm_distance(list(rows), norm)
        slow = [[np.linalg.norm(a - b, order) for b in rows] for a in rows]
        np.testing.assert_allclose(distance, slow, atol=1e-9)
        np.testing.assert_array_equal(distance, distance.T)


def test_long_vectors_are_handled_in_parts() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 2**16 + 7)).astype(np.float32)
    distance = norm_distance(list(rows), "l1")
    assert distance[0, 2] == pytest.approx(np.abs(rows[0].astype(float) - rows[2]).sum())


@given(ROWS, st.integers(1, 3))
def test_leading_coordinates_are_those_of_the_singular_vectors(rows: np.ndarray, count: int) -> None:
    """Distances between them are what counts: signs and turns within equal singular values are free."""
    coordinates = leading_coordinates(list(rows), count)
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    kept = min(count, len(values))
    if kept < len(values) and values[kept - 1] - values[kept] < 1e-3:
        return  # which directions are leading is not defined
    slow = left[:, :kept] * values[:kept]
    np.testing.assert_allclose(coordinates @ coordinates.T, slow @ slow.T, atol=1e-5)


def test_vector_j() -> None:
    cosines = decomposed_cosines(list(J), 2)
    expected = [(0.038813, 0.99924), (0.233245, 0.972317), (0.995255, 0.038337), (0.999194, 0.038847)]
    np.testing.assert_allclose(np.abs(cosines), expected, atol=1e-6)
    apart = norm_distance(list(cosines), "l2")
    assert (apart[0, 1], apart[0, 2], apart[2, 3]) == pytest.approx((0.196287, 1.411151, 0.003972), abs=1e-6)
    values = np.sqrt((leading_coordinates(list(J), 2) ** 2).sum(axis=0))
    np.testing.assert_allclose(values, (3.182529, 2.234352), atol=1e-6)
    assert k_means(cosines, 2, 0).tolist() == [0, 0, 1, 1]


def test_vector_k() -> None:
    rows = np.array([(1, 0), (0.9, 0.1), (-1, 0.1), (-0.9, 0)])
    coordinates = leading_coordinates(list(rows), 2)
    np.testing.assert_allclose(np.sqrt((coordinates**2).sum(axis=0)), (1.902637, 0.141323), atol=1e-6)
    assert k_means(coordinates, 2, 0).tolist() == [0, 0, 1, 1]
    old, new = np.array([0, 0, 1, 1, 2, 2]), np.array([2, 2, 0, 0, 1, 0])
    assert matched(new, old, 3).tolist() == [0, 0, 1, 1, 2, 1]


def two_labellings(k: int) -> st.SearchStrategy[tuple[int, list[int], list[int]]]:
    labels = st.lists(st.integers(0, k - 1), min_size=7, max_size=7)
    return st.tuples(st.just(k), labels, labels)


@given(st.integers(1, 5).flatmap(two_labellings))
def test_matching_moves_as_few_as_any_renaming(case: tuple[int, list[int], list[int]]) -> None:
    k, labels, old = case[0], np.array(case[1]), np.array(case[2])
    kept = int((matched(labels, old, k) == old).sum())
    best = max(int((np.array(names)[by_first_member(labels)] == old).sum()) for names in permutations(range(k)))
    assert kept == best
    for names in permutations(range(k)):
        np.testing.assert_array_equal(matched(np.array(names)[labels], old, k), matched(labels, old, k))


def test_matching_many_groups_is_instant() -> None:
    """A public version tries all K! permutations."""
    rng = np.random.default_rng(0)
    start = time.process_time()
    matched(rng.integers(0, 12, 200), rng.integers(0, 12, 200), 12)
    assert time.process_time() - start < 1


@given(ROWS, st.integers(1, 3), st.integers(2, 4))
def test_equal_vectors_are_in_one_place(rows: np.ndarray, count: int, k: int) -> None:
    """What rounding makes of them must not look like a difference to k-means."""
    twice = [*rows, *rows]
    for points in (leading_coordinates(twice, count), decomposed_cosines(twice, count)):
        np.testing.assert_array_equal(points[: len(rows)], points[len(rows) :])
        labels = k_means(points, k, 0)
        np.testing.assert_array_equal(labels[: len(rows)], labels[len(rows) :])


def test_there_are_no_more_groups_than_different_points() -> None:
    points = np.array([[0.0, 0], [1, 1], [0, 0], [1, 1]])
    assert k_means(points, 3, 0).tolist() == [0, 1, 0, 1]
    assert k_means(points[:1], 3, 0).tolist() == [0]


@given(st.permutations(range(6)))
def test_the_order_of_sites_changes_nothing(order: list[int]) -> None:
    rng = np.random.default_rng(3)
    points = np.concatenate([rng.normal(centre, 0.1, (3, 2)) for centre in (-5, 5)])
    labels = k_means(points[order], 2, 0)
    same = k_means(points, 2, 0)[order]
    np.testing.assert_array_equal(labels[:, None] == labels, same[:, None] == same)
