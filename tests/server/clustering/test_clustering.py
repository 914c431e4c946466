from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import silhouette_score

from common.signature import Signature
from server.clustering import (
    KSelection,
    Linkage,
    agglomerate,
    agglomerate_auto,
    distances,
    mean_silhouette,
    merge_tree,
    overlap_distance,
    select_k,
)
from server.clustering.distances import disjoint_distance, overlap_multiplier
from server.clustering.select_k import candidate_window, coefficient_of_variation, is_local_maximum
from server.clustering.silhouette import silhouettes_of_cuts
from tests.support import slow_fmcl

Matrix = NDArray[np.float64]
LINKAGES: tuple[Linkage, ...] = ("average", "single", "complete")


def draw_signatures(
    seed: int, sites: int, classes: int = 4, dimension: int = 6, concentration: float = 0.3, scatter: float = 0.4
) -> list[Signature]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dimension))
    signatures = []
    for _ in range(sites):
        counts = rng.multinomial(40, rng.dirichlet(np.full(classes, concentration)))
        present = np.flatnonzero(counts)
        prototypes = centres[present] + scatter * rng.normal(size=(len(present), dimension))
        signatures.append(
            Signature(present.astype(np.int64), prototypes.astype(np.float32), counts[present] / counts.sum())
        )
    return signatures


def one_class(label: int, *prototype: float) -> Signature:
    return Signature(np.array([label]), np.array([prototype], dtype=np.float32), np.array([1.0]))


def blobs(seed: int, *sizes: int, spread: float = 0.1, gap: float = 10.0) -> Matrix:
    """Euclidean distances between points round well-separated corners: no ties, clear clusters."""
    rng = np.random.default_rng(seed)
    points = np.concatenate(
        [gap * np.eye(len(sizes) + 1)[c] + spread * rng.normal(size=(n, len(sizes) + 1)) for c, n in enumerate(sizes)]
    )
    return pairwise(points)


def pairwise(points: Matrix) -> Matrix:
    return np.asarray(np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1)))


def same_partition(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def slow_select_k(matrix: Matrix, linkage: str = "average", k_max: int = 10) -> int:
    """Section 4 read aloud, for matrices whose off-diagonal entries are not all equal."""
    n = len(matrix)
    cuts = {len(clusters): clusters for _, clusters in slow_fmcl.partitions(matrix, linkage)}
    score = {0: -math.inf} | {k: slow_fmcl.silhouette(matrix, cuts[k]) if k < n else 0.0 for k in range(1, 13)}
    off = matrix[~np.eye(n, dtype=bool)]
    cv = off.std() / off.mean()
    low, high = (1, 3) if cv < 0.35 else (2, 6) if cv < 0.70 else (3, 10)
    window = range(low, min(high, n) + 1)
    peaks = [k for k in window if score[k] > score[k - 1] and score[k] > score[k + 1]]
    return max(peaks or range(1, min(n, k_max) + 1), key=lambda k: score[k])


# The distance


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sites=st.integers(1, 12),
    classes=st.integers(1, 6),
    concentration=st.sampled_from([0.05, 0.3, 3.0]),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    beta=st.sampled_from([1.5, 10.0, 100.0]),
    epsilon=st.sampled_from([1e-6, 1e-3, 0.2]),
    overlap=st.booleans(),
)
def test_distance_equals_the_formulas(
    seed: int,
    sites: int,
    classes: int,
    concentration: float,
    alpha: float,
    beta: float,
    epsilon: float,
    overlap: bool,
) -> None:
    signatures = draw_signatures(seed, sites, classes=classes, concentration=concentration)
    expected = slow_fmcl.distance(signatures, alpha, beta, epsilon, overlap)
    actual = overlap_distance(signatures, alpha=alpha, beta=beta, epsilon=epsilon, overlap=overlap)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
    assert np.array_equal(actual, actual.T)
    assert not np.diagonal(actual).any()


@pytest.mark.parametrize("strip", [1, 7, 64])
def test_distance_does_not_depend_on_the_strips(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    signatures = draw_signatures(3, 50, classes=5, concentration=0.1)
    monkeypatch.setattr(distances, "STRIP", strip)
    np.testing.assert_allclose(overlap_distance(signatures), slow_fmcl.distance(signatures), rtol=1e-10)


def test_distance_is_symmetric_to_the_last_bit() -> None:
    distance = overlap_distance(draw_signatures(8, distances.STRIP + 90, dimension=97, concentration=3.0))
    assert np.array_equal(distance, distance.T)


@pytest.mark.parametrize("sites", [1, 2, 3, 17, 200])
def test_distance_and_clusters_at_many_sizes(sites: int) -> None:
    distance = overlap_distance(draw_signatures(sites, sites, dimension=16))
    assert distance.shape == (sites, sites)
    assert distance.dtype == np.float64
    for k in {1, 2, sites // 2, sites} & set(range(1, sites + 1)):
        labels = agglomerate(distance, k=k)
        assert labels.dtype == np.int64
        assert set(labels.tolist()) == set(range(k))
    assert 1 <= select_k(distance).k <= min(sites, 10)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), sites=st.integers(2, 25))
def test_permuting_sites_permutes_the_distance(seed: int, sites: int) -> None:
    signatures = draw_signatures(seed, sites)
    order = np.random.default_rng(seed).permutation(sites)
    permuted = overlap_distance([signatures[i] for i in order])
    np.testing.assert_allclose(permuted, overlap_distance(signatures)[np.ix_(order, order)], rtol=1e-9, atol=1e-13)


def scaled(signatures: list[Signature], factor: float) -> list[Signature]:
    return [replace(s, prototypes=s.prototypes * np.float32(factor)) for s in signatures]


def test_scale_of_the_embeddings_enters_through_epsilon_only() -> None:
    signatures = draw_signatures(5, 15, concentration=3.0)
    # Powers of two: the scaled float32 prototypes are exact.
    plain, large = (overlap_distance(s, epsilon=1e-13) for s in (signatures, scaled(signatures, 64)))
    np.testing.assert_allclose(large, plain, atol=1e-10)
    plain, large = overlap_distance(signatures), overlap_distance(scaled(signatures, 64))
    above = np.triu_indices(len(plain), 1)
    assert np.all(np.abs(large - plain)[above] > 0)
    # epsilon takes cosine * epsilon / (norms + epsilon) off the cosine; times the multiplier it stays small.
    norm = min(float(np.linalg.norm(s.prototypes, axis=1).min()) for s in signatures)
    assert np.abs(large - plain).max() < 2 * 1e-3 / norm**2 * 100


def test_epsilon_is_added_to_the_product_of_the_norms() -> None:
    distance = overlap_distance([one_class(0, 3.0, 0.0), one_class(0, 2.0, 0.0)], epsilon=0.5)
    cosine_distance = 1 - 6 / (3 * 2 + 0.5)
    assert distance[0, 1] == pytest.approx(cosine_distance / 1.5)


def test_prototype_of_length_zero_is_at_distance_one() -> None:
    distance = overlap_distance([one_class(0, 0.0, 0.0), one_class(0, 2.0, 0.0)])
    assert distance[0, 1] == pytest.approx(1 / 1.001)


def test_multiplier_is_capped_and_floored() -> None:
    mass = np.array([[0.0, 1e-4, 0.02, 0.5, 1.0]])
    np.testing.assert_allclose(
        overlap_multiplier(mass, alpha=1.0, beta=100.0, epsilon=1e-3), [[100.0, 100.0, 50.0, 2.0, 1.0]]
    )
    np.testing.assert_allclose(
        overlap_multiplier(mass, alpha=1.0, beta=1e9, epsilon=1e-3), [[1000.0, 1000.0, 50.0, 2.0, 1.0]]
    )
    np.testing.assert_allclose(overlap_multiplier(mass, alpha=2.0, beta=1e9, epsilon=1e-3)[0, 3], 4.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), sites=st.integers(1, 60), strip=st.integers(1, 60), levels=st.sampled_from([3, 999])
)
def test_disjoint_distance_is_of_the_upper_percentiles(seed: int, sites: int, strip: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, levels, size=(sites, sites)) ** rng.choice([1.0, 3.0])  # 999^3: 2 P95 > P99, else below
    matrix[rng.random((sites, sites)) < 0.3] = math.nan
    np.fill_diagonal(matrix, math.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "STRIP", strip)
        actual = disjoint_distance(matrix)
    values = matrix[~np.isnan(matrix)]
    expected = min(2 * np.percentile(values, 95), np.percentile(values, 99)) if len(values) else 1.0
    assert actual == pytest.approx(expected, rel=1e-12)


def test_sites_without_any_shared_class_are_at_distance_one() -> None:
    distance = overlap_distance([one_class(c, 1.0, float(c)) for c in range(4)])
    assert np.array_equal(distance, 1 - np.eye(4))


def test_disjoint_pairs_take_the_far_end_of_the_defined_ones() -> None:
    near, middle, other = one_class(0, 1.0, 0.0), one_class(0, 1.0, 1.0), one_class(1, 1.0, 0.0)
    distance = overlap_distance([near, middle, other])
    assert distance[0, 2] == distance[1, 2] == pytest.approx(distance[0, 1])


def test_without_overlap_the_multiplier_is_one() -> None:
    half = np.array([0.5, 0.5])
    a = Signature(np.array([0, 1]), np.array([[1, 0], [1, 1]], dtype=np.float32), half)
    b = Signature(np.array([1, 2]), np.array([[1, 3], [0, 1]], dtype=np.float32), half)
    with_overlap, without = (overlap_distance([a, b], overlap=overlap)[0, 1] for overlap in (True, False))
    assert with_overlap == pytest.approx(2 * without)


def test_identical_sites_are_one_cluster_whatever_the_rounding() -> None:
    for factor in (1.0, 1e3):
        signature = draw_signatures(1, 1, classes=5, dimension=97, concentration=5.0)[0]
        distance = overlap_distance(scaled([signature] * 23, factor))
        assert select_k(distance) == KSelection(k=1, cv=0.0, window=(1,), scores={1: 0.0})


def test_rounding_never_makes_a_distance_negative() -> None:
    signatures = draw_signatures(0, 60, dimension=97, concentration=3.0)
    assert overlap_distance(signatures * 2, epsilon=1e-30).min() == 0


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"beta": 0.0}, {"alpha": -1.0}, {"alpha": math.nan}])
def test_bad_constants_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        overlap_distance([one_class(0, 1.0)], **bad)  # type: ignore[arg-type]


def test_signatures_must_match_and_exist() -> None:
    with pytest.raises(ValueError, match="dimension 1, signature 2 has 2"):
        overlap_distance([one_class(0, 1.0), one_class(0, 1.0), one_class(0, 1.0, 2.0)])
    with pytest.raises(ValueError, match="at least one"):
        overlap_distance([])


# The linkage


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), sites=st.integers(1, 14), linkage=st.sampled_from(LINKAGES), ties=st.booleans())
def test_every_cut_equals_greedy_merging(seed: int, sites: int, linkage: Linkage, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    # Eighths and cluster means of a few of them: ties are exact, so the rule for ties decides.
    entries = rng.integers(1, 3, size=(sites, sites)) / 8.0 if ties else rng.random((sites, sites))
    matrix = np.triu(entries, 1) + np.triu(entries, 1).T
    if ties and linkage == "average":
        matrix = np.round(slow_ultrametric(matrix), 6)
    tree = merge_tree(matrix, linkage=linkage)
    for merges, (height, clusters) in enumerate(slow_fmcl.partitions(matrix, linkage)):
        assert agglomerate(matrix, k=len(clusters), linkage=linkage).tolist() == slow_fmcl.labels_of(clusters)
        if merges:
            assert tree.heights[merges - 1] == pytest.approx(height, rel=1e-12)


def slow_ultrametric(matrix: Matrix) -> Matrix:
    """Single-linkage heights as distances: averages of tied entries are then the entries, without rounding."""
    result = np.zeros_like(matrix)
    steps = slow_fmcl.partitions(matrix, "single")
    for height, clusters in reversed(steps):
        for cluster in clusters:
            result[np.ix_(cluster, cluster)] = height
    np.fill_diagonal(result, 0.0)
    return result


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1.0])
def test_ties_still_give_exactly_k_clusters(linkage: Linkage, value: float) -> None:
    tree = merge_tree(value * (1 - np.eye(40)), linkage=linkage)
    for k in range(1, 41):
        assert tree.cut(k).tolist() == [0] * (41 - k) + list(range(1, k))


def test_equally_far_groups_merge_in_the_order_of_their_first_members() -> None:
    groups = np.repeat([0, 1, 2, 3], [2, 3, 5, 7])
    matrix = np.where(groups[:, None] == groups, 0.01, 0.1)  # rounding in the means of 0.1 must not break the ties
    np.fill_diagonal(matrix, 0.0)
    assert agglomerate(matrix, k=3).tolist() == np.maximum(groups - 1, 0).tolist()
    assert agglomerate(matrix, k=2).tolist() == np.maximum(groups - 2, 0).tolist()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), sites=st.integers(2, 40), linkage=st.sampled_from(LINKAGES))
def test_permuting_sites_permutes_the_clusters(seed: int, sites: int, linkage: Linkage) -> None:
    rng = np.random.default_rng(seed)
    matrix = pairwise(rng.normal(size=(sites, 5)))
    order = rng.permutation(sites)
    permuted = matrix[np.ix_(order, order)]
    for k in {1, 2, 3, sites} & set(range(1, sites + 1)):
        assert same_partition(
            agglomerate(permuted, k=k, linkage=linkage), agglomerate(matrix, k=k, linkage=linkage)[order]
        )
    assert select_k(permuted, linkage=linkage).k == select_k(matrix, linkage=linkage).k


def test_threshold_allows_merges_up_to_itself() -> None:
    points = np.array([0.0, 1.0, 4.0, 16.0])[:, None]
    matrix = pairwise(points)
    heights = merge_tree(matrix, linkage="single").heights
    assert heights.tolist() == [1.0, 3.0, 12.0]
    for threshold, expected in [
        (0.5, [0, 1, 2, 3]),
        (1.0, [0, 0, 1, 2]),
        (np.nextafter(3.0, 0.0), [0, 0, 1, 2]),
        (3.0, [0, 0, 0, 1]),
        (math.inf, [0, 0, 0, 0]),
    ]:
        assert agglomerate(matrix, threshold=float(threshold), linkage="single").tolist() == expected


def test_labels_are_numbered_by_first_member() -> None:
    matrix = blobs(0, 3, 3, 3)[np.ix_([8, 0, 3, 7, 1, 4, 6, 2, 5], [8, 0, 3, 7, 1, 4, 6, 2, 5])]
    assert agglomerate(matrix, k=3).tolist() == [0, 1, 2] * 3


def test_one_site() -> None:
    matrix = np.zeros((1, 1))
    assert overlap_distance([one_class(0, 1.0)]).tolist() == [[0.0]]
    assert agglomerate(matrix, k=1).tolist() == [0]
    assert agglomerate(matrix, threshold=0.0).tolist() == [0]
    assert mean_silhouette(matrix, np.array([0])) == 0.0
    assert select_k(matrix) == KSelection(k=1, cv=0.0, window=(1,), scores={1: 0.0})


def test_two_sites() -> None:
    matrix = overlap_distance([one_class(0, 1.0, 0.0), one_class(0, 1.0, 1.0)])
    assert agglomerate(matrix, k=2).tolist() == [0, 1]
    assert select_k(matrix) == KSelection(k=1, cv=0.0, window=(1,), scores={1: 0.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either k or threshold"),
        ({"k": 2, "threshold": 0.5}, "either k or threshold"),
        ({"k": 4}, "number of sites, 3; got 4"),
        ({"k": 0}, "got 0"),
        ({"threshold": math.nan}, "not a number"),
        ({"k": 2, "linkage": "ward"}, "ward"),
    ],
)
def test_bad_cuts_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agglomerate(1 - np.eye(3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"\(2, 3\)"),
        (np.zeros((0, 0)), "not empty"),
        (np.array([[0.0, math.nan], [math.nan, 0.0]]), "finite"),
        (np.array([[0.0, math.inf], [math.inf, 0.0]]), "finite"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), "negative"),
        (np.array([[0.0, 1.0], [1.0, 0.5]]), "diagonal"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), "symmetric"),
    ],
)
@pytest.mark.parametrize("use", [lambda d: agglomerate(d, k=1), select_k], ids=["agglomerate", "select_k"])
def test_what_is_no_distance_matrix_is_refused(use: Callable[[Matrix], object], matrix: Matrix, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use(matrix)


def test_the_input_is_left_alone() -> None:
    matrix = blobs(1, 4, 5)
    before = matrix.copy()
    agglomerate_auto(matrix)
    agglomerate(matrix, k=3)
    assert np.array_equal(matrix, before)


# The silhouette


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), sites=st.integers(3, 20), data=st.data())
def test_silhouette_equals_scikit_learn(seed: int, sites: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    matrix = pairwise(rng.normal(size=(sites, 3)))
    k = data.draw(st.integers(2, sites - 1))
    labels = np.concatenate([np.arange(k), rng.integers(0, k, size=sites - k)])
    expected = silhouette_score(matrix, labels, metric="precomputed")
    assert mean_silhouette(matrix, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_silhouettes_of_all_cuts_equal_those_one_by_one(linkage: Linkage) -> None:
    matrix = overlap_distance(draw_signatures(2, 9, classes=3))
    tree = merge_tree(matrix, linkage=linkage)
    for k_max in (1, 4, 9, 30):
        scores = silhouettes_of_cuts(matrix, tree, k_max)
        assert list(scores) == list(range(1, min(k_max, 9) + 1))
        for k, score in scores.items():
            members = [np.flatnonzero(tree.cut(k) == c).tolist() for c in range(k)]
            assert score == pytest.approx(slow_fmcl.silhouette(matrix, members), abs=1e-12)
    assert silhouettes_of_cuts(matrix, tree, 9)[9] == 0.0


def test_coinciding_clusters_have_silhouette_zero() -> None:
    assert mean_silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0.0


def test_labels_must_match_the_matrix() -> None:
    with pytest.raises(ValueError, match="3 sites"):
        mean_silhouette(np.zeros((3, 3)), np.array([0, 1]))


# The automatic K


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sites=st.integers(3, 16),
    concentration=st.sampled_from([0.1, 1.0, 10.0]),
    linkage=st.sampled_from(LINKAGES),
)
def test_selection_equals_the_rule(seed: int, sites: int, concentration: float, linkage: Linkage) -> None:
    matrix = overlap_distance(draw_signatures(seed, sites, classes=4, concentration=concentration))
    off = matrix[~np.eye(sites, dtype=bool)]
    labels, selection = agglomerate_auto(matrix, linkage=linkage)
    assert selection == select_k(matrix, linkage=linkage)
    assert np.array_equal(labels, agglomerate(matrix, k=selection.k, linkage=linkage))
    assert tuple(selection.scores) == selection.window
    assert selection.cv == pytest.approx(off.std() / off.mean(), abs=1e-12)
    if selection.cv > 0:
        assert selection.k == slow_select_k(matrix, linkage)


def test_edge_of_the_window_is_compared_with_its_neighbour_outside() -> None:
    # Three tight groups, one of them large: CV is high, and K = 3 is the lower edge of its window.
    selection = select_k(blobs(1, 12, 4, 3, spread=0.5))
    assert selection.cv >= 0.70
    assert selection.window == tuple(range(3, 11))
    assert max(selection.scores, key=lambda k: selection.scores[k]) == 3
    # With neighbours from inside the window alone, one of these noise peaks would win.
    assert any(is_local_maximum(selection.scores, k) for k in range(4, 10))
    assert selection.k == 3


def test_edge_that_loses_to_its_neighbour_outside_is_no_peak() -> None:
    falling = {1: 0.0, 2: 0.9, 3: 0.8, 4: 0.7}
    assert not is_local_maximum(falling, 3)
    assert is_local_maximum(falling, 2)


def test_upper_edge_is_compared_with_its_neighbour_outside() -> None:
    # Two far groups of three each: S falls from 2 and rises to 6, so with k_max = 5 the window {3, 4, 5} has no peak.
    centres = np.array([[x + 2 * np.cos(t), 2 * np.sin(t)] for x in (0.0, 30.0) for t in (0.0, 2.1, 4.2)])
    matrix = pairwise(np.repeat(centres, 4, axis=0) + 0.05 * np.random.default_rng(0).normal(size=(24, 2)))
    selection = select_k(matrix, k_max=5)
    assert selection.window == (3, 4, 5)
    assert selection.scores[4] < selection.scores[5] < select_k(matrix).scores[6]
    assert selection.k == 2


def test_no_peak_in_the_window_falls_back_to_the_best_of_all() -> None:
    # Two groups: the window starts at 3, beyond k_max.
    matrix = blobs(7, 12, 12, spread=0.01)
    selection = select_k(matrix, k_max=2)
    assert selection.cv >= 0.70
    assert selection.window == ()
    assert selection.k == 2


def test_level_silhouettes_after_the_last_cluster_are_no_peak() -> None:
    matrix = np.full((4, 4), 10.0)
    matrix[:3, :3] = 1.0
    np.fill_diagonal(matrix, 0.0)
    selection = select_k(matrix)
    assert selection.window == (3, 4)
    assert selection.scores == {3: 0.0, 4: 0.0}
    assert selection.k == 2


def test_boundaries_of_local_maxima() -> None:
    assert is_local_maximum({1: 0.0, 2: -0.1, 3: -0.2}, 1)  # S(0) = -inf
    assert is_local_maximum({1: 0.0, 2: -0.1, 3: 0.1}, 3)  # S(4) = 0 at N = 3
    assert not is_local_maximum({1: 0.0, 2: -0.2, 3: -0.1}, 3)


@pytest.mark.parametrize(
    ("cv", "largest", "window"),
    [
        (0.1, 20, (1, 2, 3)),
        (math.nextafter(0.35, 0), 20, (1, 2, 3)),
        (0.35, 20, (2, 3, 4, 5, 6)),
        (math.nextafter(0.70, 0), 20, (2, 3, 4, 5, 6)),
        (0.70, 20, (3, 4, 5, 6, 7, 8, 9, 10)),
        (0.70, 5, (3, 4, 5)),
        (0.40, 3, (2, 3)),
        (0.10, 2, (1, 2)),
    ],
)
def test_windows(cv: float, largest: int, window: tuple[int, ...]) -> None:
    assert candidate_window(cv, largest) == window


def test_clear_groups_are_found() -> None:
    labels, selection = agglomerate_auto(blobs(0, 5, 5, 5, 5))
    assert selection.k == 4
    assert labels.tolist() == [c for c in range(4) for _ in range(5)]


def test_k_max_bounds_the_choice() -> None:
    assert select_k(blobs(0, 5, 5, 5, 5), k_max=3).k <= 3
    with pytest.raises(ValueError, match="got 0"):
        select_k(np.zeros((2, 2)), k_max=0)


def test_equal_distances_have_no_variation() -> None:
    # 0.1 has no exact mean: rounding must not look like structure.
    for n in (2, 7, 50):
        assert coefficient_of_variation(0.1 * (1 - np.eye(n))) == 0.0
    assert coefficient_of_variation(np.zeros((5, 5))) == 0.0


@pytest.mark.parametrize(("scale", "noise", "equal"), [(1e5, 1e-9, True), (1e-9, 1e-14, True), (1e-3, 1e-6, False)])
def test_rounding_is_no_variation(scale: float, noise: float, equal: bool) -> None:
    wobble = np.random.default_rng(0).choice([0.0, noise], size=(20, 20))
    matrix = np.triu(scale + wobble, 1)
    assert (coefficient_of_variation(matrix + matrix.T) == 0.0) == equal


def test_variation_over_strips() -> None:
    matrix = blobs(3, distances.STRIP, 99)
    off = matrix[~np.eye(len(matrix), dtype=bool)]
    assert coefficient_of_variation(matrix) == pytest.approx(off.std() / off.mean(), rel=1e-12)


def test_duplicated_sites_share_a_cluster() -> None:
    prototypes = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    base = [Signature(np.array([0]), row[None], np.array([1.0])) for row in prototypes]
    labels, selection = agglomerate_auto(overlap_distance(base * 5))
    assert selection.k == 4
    assert labels.tolist() == [0, 1, 2, 3] * 5
