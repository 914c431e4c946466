"""Gradient paths as a graph: cosines and modularity against slow, obvious versions, and groups that must be found."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.head_path import HeadPath
from server.clustering import modularity_partition, path_similarity
from server.clustering.louvain import louvain

SEEDS = st.integers(0, 2**32 - 1)


def slow_similarity(paths: list[HeadPath]) -> np.ndarray:
    result = np.eye(len(paths))
    for i, a in enumerate(paths):
        for j, b in enumerate(paths):
            x, y = a.changes.ravel().astype(float), b.changes.ravel().astype(float)
            if i != j and x.any() and y.any():
                result[i, j] = sum(x * y) / (np.sqrt(sum(x * x)) * np.sqrt(sum(y * y)))
    return result


def slow_modularity(similarity: np.ndarray, labels: np.ndarray) -> float:
    """Newman's Q: the mean over pairs of one group of (weight − what the degrees would give by chance)."""
    count = len(labels)
    weight = [[max(similarity[i, j], 0.0) if i != j else 0.0 for j in range(count)] for i in range(count)]
    degree = [sum(row) for row in weight]
    total = sum(degree)
    if total == 0:
        return 0.0
    return sum(
        (weight[i][j] - degree[i] * degree[j] / total) / total
        for i in range(count)
        for j in range(count)
        if labels[i] == labels[j]
    )


def draw_weights(seed: int, sites: int, kind: str) -> np.ndarray:
    """Symmetric weights without loops; ties are the rule among the sparse and the planted ones."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 5, sites)
    drawn = {
        "dense": lambda: rng.random((sites, sites)),
        "sparse": lambda: (rng.random((sites, sites)) < 0.2).astype(float),
        "coarse": lambda: rng.integers(0, 3, (sites, sites)) / 2,
        "planted": lambda: np.where(group[:, None] == group, 0.7, 0.1) * rng.random(),
    }[kind]()
    above = np.triu(drawn, 1)
    return above + above.T


def draw_paths(seed: int, groups: np.ndarray, *, noise: float = 0.3, epochs: int = 3, size: int = 40) -> list[HeadPath]:
    """Paths of lengths 0.1 to 10 around one direction per group, each at right angles to the others."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(epochs * size, int(groups.max()) + 1)))
    centres = np.sqrt(epochs * size) * basis.T.reshape(-1, epochs, size)
    lengths = 10 ** rng.uniform(-1, 1, len(groups))
    return [
        HeadPath((length * (centres[group] + noise * rng.normal(size=(epochs, size)))).astype(np.float32))
        for group, length in zip(groups, lengths, strict=True)
    ]


def similarity_of_noise(seed: int, sites: int, shift: float) -> np.ndarray:
    """A symmetric matrix without any structure."""
    matrix = np.random.default_rng(seed).uniform(-1, 1, (sites, sites)) + shift
    matrix = np.clip((matrix + matrix.T) / 2, -1, 1)
    np.fill_diagonal(matrix, 1)
    return matrix


def by_first_member(labels: np.ndarray) -> list[int]:
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(label), len(numbers)) for label in labels]


@given(SEEDS, st.integers(1, 8))
def test_similarity_is_the_cosine(seed: int, sites: int) -> None:
    paths = draw_paths(seed, np.arange(sites) % 3)
    similarity = path_similarity(paths)
    assert similarity.dtype == np.float64
    np.testing.assert_allclose(similarity, slow_similarity(paths), atol=1e-12)
    np.testing.assert_array_equal(similarity, similarity.T)
    np.testing.assert_array_equal(np.diagonal(similarity), 1)
    assert np.abs(similarity).max() <= 1


@given(SEEDS, st.floats(1e-20, 1e20))
def test_the_length_of_a_path_does_not_count(seed: int, factor: float) -> None:
    paths = draw_paths(seed, np.array([0, 0, 1, 1]))
    longer = [HeadPath(paths[0].changes * np.float32(factor)), *paths[1:]]
    np.testing.assert_allclose(path_similarity(longer), path_similarity(paths), atol=1e-6)


def test_a_path_that_goes_nowhere_is_similar_to_itself_alone() -> None:
    still = HeadPath(np.zeros((3, 40), np.float32))
    similarity = path_similarity([still, *draw_paths(0, np.array([0, 0])), still])
    np.testing.assert_array_equal(similarity[0], [1, 0, 0, 0])
    assert modularity_partition(similarity).tolist() == [0, 1, 1, 2]


def test_huge_changes_do_not_overflow() -> None:
    huge = HeadPath(np.full((2, 3), 3e38, np.float32))
    np.testing.assert_allclose(path_similarity([huge, huge]), 1.0)


def test_paths_must_exist_and_match() -> None:
    with pytest.raises(ValueError, match="at least one"):
        path_similarity([])
    with pytest.raises(ValueError, match="different shapes"):
        path_similarity([HeadPath(np.ones(shape, np.float32)) for shape in ((2, 3), (3, 2))])


@given(SEEDS, st.integers(1, 12), st.floats(-0.8, 0.8))
def test_no_worse_than_all_in_one_and_all_alone(seed: int, sites: int, shift: float) -> None:
    similarity = similarity_of_noise(seed, sites, shift)
    labels = modularity_partition(similarity)
    assert labels.dtype == np.int64
    assert by_first_member(labels) == labels.tolist()
    found = slow_modularity(similarity, labels)
    # Louvain stops at gains below 1e-7.
    assert found >= slow_modularity(similarity, np.zeros(sites)) - 1e-6
    assert found >= slow_modularity(similarity, np.arange(sites)) - 1e-6


@given(
    SEEDS,
    st.integers(1, 60),
    st.sampled_from(["dense", "sparse", "coarse", "planted"]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_the_groups_are_those_of_networkx(seed: int, sites: int, kind: str, resolution: float) -> None:
    weights = draw_weights(seed, sites, kind)
    graph = networkx.from_numpy_array(weights)
    found = networkx.community.louvain_communities(graph, weight="weight", resolution=resolution, seed=0)
    labels = louvain(weights, resolution=resolution)
    assert [set(np.flatnonzero(labels == label).tolist()) for label in range(labels.max() + 1)] == sorted(
        found, key=min
    )


# Of like size: modularity merges groups that are small beside the others at the least similarity between them.
@given(SEEDS, st.lists(st.integers(3, 5), min_size=2, max_size=5))
def test_planted_groups_are_found_in_any_order_of_the_sites(seed: int, sizes: list[int]) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.random.default_rng(seed).permutation(groups)
    labels = modularity_partition(path_similarity(draw_paths(seed, groups)))
    assert labels.tolist() == by_first_member(groups)


@given(SEEDS)
def test_the_order_of_the_sites_does_not_change_the_partition(seed: int) -> None:
    similarity = path_similarity(draw_paths(seed, np.arange(12) % 4))
    order = np.random.default_rng(seed).permutation(12)
    permuted = modularity_partition(similarity[np.ix_(order, order)])
    assert permuted.tolist() == by_first_member(modularity_partition(similarity)[order])


@given(SEEDS, st.integers(2, 8))
def test_sites_with_the_same_path_end_up_together(seed: int, sites: int) -> None:
    paths = draw_paths(seed, np.arange(sites), noise=1.0)
    labels = modularity_partition(path_similarity([*paths, *paths]))
    np.testing.assert_array_equal(labels[:sites], labels[sites:])


def test_a_common_drift_of_all_sites_does_not_hide_the_groups() -> None:
    """All heads move alike in part, so every similarity is positive; modularity looks at what is above chance."""
    groups = np.arange(12) % 3
    rng = np.random.default_rng(0)
    common = 1.5 * rng.normal(size=(3, 40))
    centres = rng.normal(size=(3, 3, 40))
    paths = [HeadPath((common + centres[g] + 0.2 * rng.normal(size=(3, 40))).astype(np.float32)) for g in groups]
    similarity = path_similarity(paths)
    assert similarity.min() > 0.4
    assert modularity_partition(similarity).tolist() == groups.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_equal_input_gives_equal_labels(seed: int) -> None:
    similarity = similarity_of_noise(seed, 30, 0.3)
    first = modularity_partition(similarity)
    before = similarity.copy()
    np.testing.assert_array_equal(modularity_partition(similarity), first)
    np.testing.assert_array_equal(similarity, before)


@pytest.mark.parametrize(
    ("similarity", "labels"),
    [
        (np.ones((1, 1)), [0]),
        (np.ones((2, 2)), [0, 0]),
        (np.array([[1, -0.1], [-0.1, 1]]), [0, 1]),
        (np.eye(2), [0, 1]),
        (2 * np.eye(5) - 1, [0, 1, 2, 3, 4]),
        (np.ones((5, 5)), [0, 0, 0, 0, 0]),
        # What rounding leaves of a cosine of 0 is not an edge.
        (np.eye(4) + 1e-16, [0, 1, 2, 3]),
    ],
)
def test_small_and_degenerate_graphs(similarity: np.ndarray, labels: list[int]) -> None:
    assert modularity_partition(similarity).tolist() == labels
