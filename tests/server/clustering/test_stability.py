"""How sure a grouping is, and the map of the sites: against slow and obvious versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.clustering import agglomerate, agglomerate_auto, mean_silhouette, redraw, site_map, site_silhouettes
from server.clustering.scaling import classical_scaling, majorise, rank_distance

seeds = st.integers(0, 2**32 - 1)


def points_distance(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))


def two_heaps(count: int = 10, gap: float = 10.0, seed: int = 0) -> NDArray[np.float64]:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    points[count // 2 :] += gap
    return points_distance(points)


def pair(matrix: NDArray[np.float64]) -> NDArray[np.int64]:
    return agglomerate(matrix, k=min(2, len(matrix)))


@given(seed=seeds, count=st.integers(4, 9))
def test_together_is_the_share_of_draws_with_both(seed: int, count: int) -> None:
    distance = two_heaps(count, gap=1.0, seed=seed)
    found = redraw(distance, pair, np.random.default_rng(seed), draws=12)
    assert found is not None
    assert found.draws == sum(found.group_counts.values()) == 12
    rng = np.random.default_rng(seed)
    kept = min(count - 1, max(2, round(0.8 * count)))
    drawn: list[tuple[list[int], list[int]]] = []
    for _ in range(12):
        rows = sorted(rng.choice(count, kept, replace=False).tolist())
        drawn.append((rows, pair(np.array([[distance[i, j] for j in rows] for i in rows])).tolist()))
    for i in range(count):
        for j in range(count):
            both = [(rows, labels) for rows, labels in drawn if i in rows and j in rows]
            same = [1 for rows, labels in both if labels[rows.index(i)] == labels[rows.index(j)]]
            if i == j:
                assert found.together[i, j] == 1
            elif not both:
                assert np.isnan(found.together[i, j])
            else:
                assert found.together[i, j] == len(same) / len(both)


def test_clear_groups_are_sure_and_one_in_the_middle_is_not() -> None:
    points = np.concatenate([np.random.default_rng(1).normal(size=(12, 2)), [[5.0, 5.0]]])
    points[6:12] += 10
    distance = points_distance(points)
    found = redraw(distance, pair, np.random.default_rng(0))
    assert found is not None
    labels = pair(distance)
    own, rival = found.with_own(labels), found.with_rival(labels)
    assert (own[:12] > 0.75).all()
    assert own[12] < own[:12].min()
    assert rival[12] > rival[:12].max()
    assert found.kept_together(labels) > 0.9
    assert found.kept_apart(labels) > 0.8


def test_sites_alone_have_nobody_to_stay_with() -> None:
    distance = two_heaps(6)
    found = redraw(distance, lambda part: np.arange(len(part)), np.random.default_rng(0))
    assert found is not None
    labels = np.arange(6)
    assert np.isnan(found.with_own(labels)).all()
    assert np.isnan(found.kept_together(labels))
    assert found.kept_apart(labels) == 1
    everybody = redraw(distance, lambda part: np.zeros(len(part), np.int64), np.random.default_rng(0))
    assert everybody is not None
    assert (everybody.with_rival(np.zeros(6, np.int64)) == 0).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_sites_cannot_be_left_out(count: int) -> None:
    assert redraw(two_heaps(count), pair, np.random.default_rng(0)) is None


def test_the_same_generator_gives_the_same_draws() -> None:
    def once() -> NDArray[np.float64]:
        found = redraw(two_heaps(9, 1.0), lambda part: agglomerate_auto(part)[0], np.random.default_rng(4))
        assert found is not None
        return found.together

    np.testing.assert_array_equal(once(), once())


@given(seed=seeds, count=st.integers(2, 12))
def test_site_silhouettes_are_those_of_the_definition(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    distance = points_distance(rng.normal(size=(count, 3)))
    labels = np.unique(rng.integers(0, 3, count), return_inverse=True)[1].astype(np.int64)
    expected = []
    for i in range(count):
        mates = [j for j in range(count) if labels[j] == labels[i] and j != i]
        others = {g: [j for j in range(count) if labels[j] == g] for g in set(labels.tolist()) - {int(labels[i])}}
        if not mates or not others:
            expected.append(0.0)
            continue
        a = np.mean([distance[i, j] for j in mates])
        b = min(np.mean([distance[i, j] for j in members]) for members in others.values())
        expected.append((b - a) / max(a, b))
    np.testing.assert_allclose(site_silhouettes(distance, labels), expected, atol=1e-12)
    assert mean_silhouette(distance, labels) == pytest.approx(np.mean(expected))


# --- the map -----------------------------------------------------------------------------------------------------


@given(seed=seeds, count=st.integers(3, 15))
def test_classical_scaling_gives_back_a_plane(seed: int, count: int) -> None:
    distance = points_distance(np.random.default_rng(seed).normal(size=(count, 2)))
    np.testing.assert_allclose(points_distance(classical_scaling(distance)), distance, atol=1e-7)


@given(seed=seeds, count=st.integers(2, 12))
def test_majorising_never_raises_the_stress(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    target = points_distance(rng.normal(size=(count, 5)))
    start = rng.normal(size=(count, 2))
    before = np.sqrt(((points_distance(start) - target) ** 2).sum() / (target**2).sum())
    points, stress = majorise(start, target)
    assert stress <= before + 1e-9
    # The stress is that of the points it comes with.
    assert stress == pytest.approx(np.sqrt(((points_distance(points) - target) ** 2).sum() / (target**2).sum()))


def test_ranks_of_distances_keep_order_and_ties() -> None:
    distance = np.array([[0.0, 5, 100], [5, 0, 5], [100, 5, 0]])
    np.testing.assert_allclose(rank_distance(distance), np.array([[0, 1.5, 3], [1.5, 0, 1.5], [3, 1.5, 0]]) / 3)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_maps_of_few_sites_and_of_equal_ones(count: int) -> None:
    for distance in (two_heaps(count), np.zeros((count, count)), np.ones((count, count)) - np.eye(count)):
        found = site_map(distance)
        assert found.points.shape == (count, 2)
        assert np.isfinite(found.points).all()
        assert np.abs(found.points).max() <= 1 + 1e-9
        assert 0 <= found.stress <= 1


def test_groups_lie_apart_on_the_map() -> None:
    points = site_map(two_heaps(12)).points
    within = max(np.ptp(points[:6], axis=0).max(), np.ptp(points[6:], axis=0).max())
    assert np.linalg.norm(points[:6].mean(axis=0) - points[6:].mean(axis=0)) > within
