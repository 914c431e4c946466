"""The distance by how classes look: against a slow version, and on signatures whose groups are known."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.grouping_truth import SPECTRA, World, draw
from common.signature import Signature
from server.clustering import (
    adjusted_rand_index,
    agglomerate_guarded,
    appearance_distance,
    chance_of,
    overlap_distance,
)
from server.clustering.appearance import along_paths, class_traces


def drawn(world: World, sites: int, classes: int, seed: int) -> tuple[list[Signature], list[int], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    signatures, sizes, groups = draw(world, sites, classes, equal=False, spectrum=SPECTRA["isotropic"], rng=rng)
    return signatures, sizes.tolist(), groups


def slow_appearance(signatures: list[Signature], sizes: list[int]) -> NDArray[np.float64]:
    """The docstring, read aloud, with every path between two sites tried."""
    count = len(signatures)

    def samples(site: int, label: int) -> int:
        own = signatures[site].classes.tolist()
        return round(float(signatures[site].shares[own.index(label)]) * sizes[site]) if label in own else 0

    def value(site: int, label: int, name: str) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.float64(getattr(signatures[site], name)[signatures[site].classes == label][0])
        return found

    labels = sorted({int(label) for one in signatures for label in one.classes})
    traces: dict[int, float] = {}
    for label in labels:
        has = [site for site in range(count) if samples(site, label)]
        if free := sum(samples(site, label) - 1 for site in has):
            traces[label] = sum(samples(site, label) * float(value(site, label, "scatter")) for site in has) / free
    typical = float(np.mean(list(traces.values()))) if traces else 0.0
    seen, beyond = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for i in range(count):
        for j in range(count):
            raw = less = mass = 0.0
            for label in labels:
                if i == j or not samples(i, label) or not samples(j, label):
                    continue
                a, b = value(i, label, "prototypes"), value(j, label, "prototypes")
                length = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
                weight = min(float(value(i, label, "shares")), float(value(j, label, "shares")))
                raw += weight * max(1 - float(a @ b) / length, 0.0)
                inverse = 1 / samples(i, label) + 1 / samples(j, label)
                less += weight * traces.get(label, typical) * inverse / (2 * length)
                mass += weight
            if mass:
                seen[i, j], beyond[i, j] = raw / mass, max(raw - less, 0.0) / mass
    known = seen[~np.isnan(seen)]
    far = 2 * float(np.percentile(known, 95)) if len(known) else 1.0
    result = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if i == j or not np.isnan(beyond[i, j]):
                result[i, j] = 0.0 if i == j else beyond[i, j]
                continue
            others = [k for k in range(count) if k not in (i, j)]
            paths = [(i, *middle, j) for m in range(1, count - 1) for middle in permutations(others, m)]
            steps = np.where(np.isnan(beyond), math.inf, beyond)
            best = min((max(float(steps[a, b]) for a, b in pairwise(path)) for path in paths), default=math.inf)
            result[i, j] = far if math.isinf(best) else best
    return result


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), sites=st.integers(1, 5), classes=st.integers(1, 5))
def test_appearance_equals_the_slow_version(seed: int, sites: int, classes: int) -> None:
    signatures, sizes, _ = drawn(World("", alpha=0.1, device=0.3), sites, classes, seed)
    found = appearance_distance(signatures, sizes)
    np.testing.assert_allclose(found, slow_appearance(signatures, sizes), rtol=1e-5, atol=1e-7)
    assert np.array_equal(found, found.T)


def test_a_third_site_tells_of_two_without_a_common_class() -> None:
    far, near = 5.0, 0.5
    known = np.array([[np.nan, 1.0, near, np.nan], [1.0, np.nan, near, np.nan], [near, near, np.nan, np.nan]])
    known = np.vstack([known, np.full(4, np.nan)])
    unknown = known.copy()
    unknown[0, 1] = unknown[1, 0] = np.nan
    # What is known stays as it is, however short the way round is; the fourth shares nothing with anybody.
    assert along_paths(known, far)[0].tolist() == [0.0, 1.0, near, far]
    assert along_paths(unknown, far)[0].tolist() == [0.0, near, near, far]
    assert not along_paths(np.full((1, 1), np.nan), far).any()


def test_a_class_of_single_samples_scatters_as_the_others_do() -> None:
    means = np.eye(2, 8, dtype=np.float32)
    two = Signature(np.array([0, 1]), means, np.array([0.75, 0.25]), np.array([0.2, 0.0]))
    assert np.isnan(class_traces([two, two], [np.array([3.0, 1.0])] * 2)[1])
    turned = Signature(np.array([1]), np.roll(means, 1, axis=1)[1:], np.ones(1))
    # 1 apart; by chance 0.3 (1/1 + 1/1) / 2, with the scatter of class 0: 6 x 0.2 / (6 - 2).
    assert appearance_distance([two, two, turned], [4, 4, 1])[0, 2] == pytest.approx(1 - 0.3)
    # Nothing is chance where nobody sent a scatter.
    bare = [Signature(one.classes, one.prototypes, one.shares) for one in (two, two, turned)]
    assert appearance_distance(bare, [4, 4, 1])[0, 2] == pytest.approx(1.0)


@pytest.mark.parametrize("alpha", [0.5, 0.1])
@pytest.mark.parametrize("kind", [{"device": 1.0}, {"concept": True}], ids=["devices", "concept"])
def test_label_skew_does_not_hide_groups(alpha: float, kind: dict[str, float]) -> None:
    found, hidden = [], []
    for seed in range(6):
        signatures, sizes, groups = drawn(World("", alpha=alpha, **kind), 20, 10, seed)  # type: ignore[arg-type]
        chance = chance_of(signatures, sizes, shares_count=False)
        assert chance.only_means_count
        by_look, by_overlap = appearance_distance(signatures, sizes), overlap_distance(signatures, rule="guarded")
        found.append(adjusted_rand_index(agglomerate_guarded(by_look, chance)[0], groups))
        hidden.append(adjusted_rand_index(agglomerate_guarded(by_overlap, chance)[0], groups))
    assert np.mean(found) > 0.8
    assert np.mean(found) >= np.mean(hidden)


def test_class_shares_alone_are_no_reason_unless_nothing_connects_the_sites() -> None:
    for alpha, disjoint, many in ((0.1, False, False), (None, True, True)):
        signatures, sizes, groups = drawn(World("", alpha=alpha, disjoint=disjoint), 20, 10, 0)
        counted, known = (chance_of(signatures, sizes, shares_count=count) for count in (True, False))
        assert counted.ruled_out
        assert known.ruled_out
        assert not known.only_means_count
        assert (known.parts > 1) == many
        distance = overlap_distance(signatures, rule="guarded")
        assert agglomerate_guarded(distance, counted)[1].k > 1
        labels, _ = agglomerate_guarded(distance, known)
        assert adjusted_rand_index(labels, groups) == (1.0 if many else pytest.approx(1.0))
        assert (labels.max() > 0) == many


def test_a_class_that_is_withheld_connects() -> None:
    means = np.eye(3, dtype=np.float32)
    sites = [Signature(np.array([label]), means[[label]], np.ones(1), np.ones(1)) for label in range(3)]
    assert chance_of(sites, [20] * 3).parts == 3
    # The two that withhold samples may have each other's class, and that of the third.
    assert chance_of(sites, [20] * 3, np.array([9, 9, 0])).parts == 1
