"""Which classes groups have, or how samples of a class look: told apart, and both from chance."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from common.signature import Signature
from server.clustering import GroupDifference, adjusted_rand_index, group_differences

KINDS = 3


def world(
    kind: str, seed: int, *, sites: int = 12, size: int = 150, classes: int = 6
) -> tuple[list[Signature], list[int], list[int]]:
    """Signatures of sites of three kinds that differ by nothing, by class shares, by device, by meaning, or by two."""
    rng = np.random.default_rng(seed)
    centres = 1.0 + 0.7 * rng.normal(size=(classes, 48))
    shifts = 0.7 * rng.normal(size=(KINDS, 48))
    meanings = [np.roll(np.arange(classes), number) for number in range(KINDS)]
    skewed = np.array(
        [np.roll([0.6, 0.2, *[0.2 / (classes - 2)] * (classes - 2)], 2 * number) for number in range(KINDS)]
    )
    labels = [site % KINDS for site in range(sites)]
    signatures, sizes = [], []
    for label in labels:
        shares = skewed[label] if kind in ("shares", "both") else np.full(classes, 1 / classes)
        drawn = rng.choice(classes, int(rng.integers(size // 2, size)), p=shares)
        seen = meanings[label][drawn] if kind == "concept" else drawn
        samples = centres[seen] + rng.normal(size=(len(drawn), 48))
        if kind in ("images", "both"):
            samples += shifts[label]
        signatures.append(signature(samples, drawn))
        sizes.append(len(drawn))
    return signatures, sizes, labels


def signature(samples: NDArray[np.float64], labels: NDArray[np.int64]) -> Signature:
    classes, counts = np.unique(labels, return_counts=True)
    means = np.stack([samples[labels == label].mean(axis=0) for label in classes])
    return Signature(classes.astype(np.int64), means.astype(np.float32), counts / len(labels))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("iid", "neither"), ("shares", "shares"), ("images", "images"), ("concept", "images"), ("both", "both")],
)
def test_the_kind_of_difference_is_found(kind: str, expected: str) -> None:
    found: Counter[str] = Counter()
    for seed in range(6):
        found.update(pair.kind for pair in group_differences(*world(kind, seed)))
    assert found[expected] >= 0.9 * found.total(), found


def test_what_chance_gives_is_what_is_seen_where_nothing_differs() -> None:
    pairs = [pair for seed in range(10) for pair in group_differences(*world("iid", seed))]
    for seen, chance in (("shares", "shares_by_chance"), ("images", "images_by_chance")):
        ratio = np.mean([getattr(pair, seen) for pair in pairs]) / np.mean([getattr(pair, chance) for pair in pairs])
        assert ratio == pytest.approx(1.0, abs=0.25)


def slow(signatures: list[Signature], sizes: list[int], labels: list[int], one: int, other: int) -> tuple[float, float]:
    """Total variation and the weighted cosine distance, class by class in plain Python, not scaled."""
    classes = sorted({int(c) for s in signatures for c in s.classes})

    def pooled(group: int) -> tuple[dict[int, float], dict[int, Any]]:
        counts = dict.fromkeys(classes, 0.0)
        sums: dict[int, Any] = {}
        for s, size, label in zip(signatures, sizes, labels, strict=True):
            for row, c in enumerate(s.classes.tolist()):
                if label == group:
                    counts[c] += s.shares[row] * size
                    sums[c] = sums.get(c, 0) + s.shares[row] * size * s.prototypes[row].astype(np.float64)
        return counts, {c: sums[c] / counts[c] for c in sums}

    (mine, my_means), (theirs, their_means) = pooled(one), pooled(other)
    p = {c: mine[c] / sum(mine.values()) for c in classes}
    q = {c: theirs[c] / sum(theirs.values()) for c in classes}
    variation = sum(abs(p[c] - q[c]) for c in classes) / 2
    shared = [c for c in classes if min(p[c], q[c]) > 0]
    total = sum(min(p[c], q[c]) for c in shared)
    distance = 0.0
    for c in shared:
        a, b = my_means[c], their_means[c]
        distance += min(p[c], q[c]) / total * (1 - a @ b / math.sqrt((a @ a) * (b @ b)))
    return variation, distance


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["iid", "shares", "images"]))
def test_differences_are_those_of_the_slow_version_up_to_the_scale(seed: int, kind: str) -> None:
    signatures, sizes, labels = world(kind, seed, sites=7, size=40)
    found = group_differences(signatures, sizes, labels)
    assert [(pair.one, pair.other) for pair in found] == [(0, 1), (0, 2), (1, 2)]
    raw = [slow(signatures, sizes, labels, pair.one, pair.other) for pair in found]
    for pair, (variation, _) in zip(found, raw, strict=True):
        assert pair.shares == pytest.approx(variation, abs=1e-12)
    scale = raw[0][1] / found[0].images
    assert [pair.images * scale for pair in found] == pytest.approx([distance for _, distance in raw], rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.permutations(range(9)), st.floats(0.1, 10))
def test_the_order_of_sites_and_the_length_of_embeddings_do_not_matter(
    seed: int, order: list[int], factor: float
) -> None:
    signatures, sizes, labels = world("both", seed, sites=9, size=40)
    stretched = [Signature(s.classes, (s.prototypes * factor).astype(np.float32), s.shares) for s in signatures]
    moved = [[part[place] for place in order] for part in (stretched, sizes, labels)]
    for one, other in zip(
        group_differences(signatures, sizes, labels),
        group_differences(*moved),
        strict=True,  # type: ignore[arg-type]
    ):
        assert (one.one, one.other, one.kind) == (other.one, other.other, other.kind)
        assert other.shares == pytest.approx(one.shares)
        assert other.images == pytest.approx(one.images, rel=1e-3)
        assert other.images_by_chance == pytest.approx(one.images_by_chance, rel=1e-3)


def test_the_scatter_that_sites_send_tells_chance_where_every_group_is_one_site() -> None:
    signatures, sizes, _ = world("iid", 0, sites=3, size=200)
    alone = group_differences(signatures, sizes, [0, 1, 2])
    assert all(math.isnan(pair.images_by_chance) for pair in alone)
    told = [Signature(s.classes, s.prototypes, s.shares, np.full(6, 47.0)) for s in signatures]
    for pair in group_differences(told, sizes, [0, 1, 2]):
        assert pair.kind == "neither"
        assert pair.images_by_chance == pytest.approx(pair.images, rel=0.6)


def test_memory_does_not_grow_with_sites_times_classes() -> None:
    rng = np.random.default_rng(0)
    sites = [
        Signature(np.array([0, 1 + place]), rng.normal(size=(2, 32)).astype(np.float32), np.array([0.5, 0.5]))
        for place in range(300)
    ]
    tracemalloc.start()
    group_differences(sites, [20] * 300, [place % 2 for place in range(300)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * 300 * 32 * 4 / 4


def test_groups_without_a_common_class_cannot_be_compared_by_their_images() -> None:
    rng = np.random.default_rng(0)
    sites = [signature(1 + rng.normal(size=(20, 8)), np.full(20, label)) for label in (0, 0, 1, 1)]
    (pair,) = group_differences(sites, [20] * 4, [0, 0, 1, 1])
    assert pair.kind == "unknown"
    assert pair.shares == 1.0
    assert math.isnan(pair.images)


def test_one_group_and_one_class_have_nothing_to_compare() -> None:
    signatures, sizes, _ = world("iid", 0, sites=4)
    assert group_differences(signatures, sizes, [0] * 4) == []
    rng = np.random.default_rng(0)
    same = [signature(1 + rng.normal(size=(20, 8)), np.zeros(20, np.int64)) for _ in range(2)]
    assert group_differences(same, [20, 20], [0, 1])[0].kind == "unknown"


def test_of_very_many_groups_the_largest_are_compared() -> None:
    signatures, sizes, _ = world("iid", 0, sites=63, size=10)
    labels = [*range(62), 61]
    pairs = group_differences(signatures, sizes, labels)
    assert len(pairs) == 60 * 59 // 2
    assert any(61 in (pair.one, pair.other) for pair in pairs)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_the_rand_index_is_that_of_sklearn(pairs: list[tuple[int, int]]) -> None:
    one, other = zip(*pairs, strict=True)
    assert adjusted_rand_index(one, other) == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)


def test_a_difference_that_is_no_more_than_twice_chance_is_none() -> None:
    assert GroupDifference(0, 1, 0.1, 0.0, 0.5, 0.3).kind == "neither"
    assert GroupDifference(0, 1, 0.1, 0.0, 0.5, 0.2).kind == "images"
    assert GroupDifference(0, 1, 0.1, 0.0, 0.5, math.nan).kind == "images"
    assert GroupDifference(0, 1, 0.4, 0.2, 0.05, 0.0).kind == "neither"
    assert GroupDifference(0, 1, 0.5, 0.2, 0.05, 0.0).kind == "shares"
