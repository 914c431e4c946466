"""The guarded rule: the tests of chance against slow versions and draws, and the number of groups where it is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from common.signature import Signature
from server.clustering import (
    Chance,
    agglomerate_auto,
    agglomerate_guarded,
    appearance_distance,
    chance_of,
    chance_of_last,
    find_place,
    overlap_distance,
)
from server.clustering.chance import ITERATIONS, LEVEL, chance_of_shares, moments, with_withheld
from server.clustering.class_means import chance_of_means
from server.clustering.distances import disjoint_distance
from server.clustering.newcomer import MOST_MEMBERS, Place, _sample

CERTAIN = Chance(0.0, 0.0)


def federation(
    seed: int,
    counts: NDArray[np.int64],
    *,
    shifts: NDArray[np.float64] | None = None,
    spectrum: NDArray[np.float64] | None = None,
) -> tuple[list[Signature], list[int]]:
    """Signatures of sites with int64[N, C] samples; shifts float64[N, d] move all that a site has."""
    rng = np.random.default_rng(seed)
    spectrum = np.ones(12) if spectrum is None else spectrum
    centres = rng.normal(size=(counts.shape[1], len(spectrum))) + 1
    found = []
    for site, row in enumerate(counts):
        present = np.flatnonzero(row)
        means, scatter = [], []
        for label in present:
            samples = centres[label] + np.sqrt(spectrum) * rng.normal(size=(row[label], len(spectrum)))
            samples = samples + (0 if shifts is None else shifts[site])
            means.append(samples.mean(axis=0))
            scatter.append(((samples - means[-1]) ** 2).sum(axis=1).mean() if row[label] > 1 else 0.0)
        found.append(Signature(present, np.array(means, np.float32), row[present] / row.sum(), np.array(scatter)))
    return found, counts.sum(axis=1).tolist()


def iid(seed: int, sites: int, classes: int, samples: int = 30) -> NDArray[np.int64]:
    rng = np.random.default_rng((seed, 1))
    sizes = np.maximum(rng.lognormal(np.log(samples), 1.0, sites), 3).astype(int)
    return np.stack([rng.multinomial(size, np.full(classes, 1 / classes)) for size in sizes])


class Known(NamedTuple):
    """A class: the trace of its scatter, what that is known from, and samples and mean at each site that has it."""

    trace: float
    free: int
    at: dict[int, tuple[float, NDArray[np.float64]]]

    @property
    def total(self) -> float:
        return sum(n for n, _ in self.at.values())

    @property
    def mean(self) -> NDArray[np.float64]:
        return np.asarray(sum(n * m for n, m in self.at.values()) / self.total)

    def samples(self, site: int) -> float:
        return self.at[site][0] if site in self.at else 0.0


def slow_p(ratio: float, expected: float, spread: float, heavy: float, parts: list[float], kept: list[Known]) -> float:
    error = sum((part * one.trace) ** 2 * heavy / one.free for part, one in zip(parts, kept, strict=True))
    return float(stats.f.sf(ratio, 2 * expected**2 / spread, 2 * expected**2 / error))


def slow_by_class(kept: list[Known], rho: float, heavy: float) -> float:
    apart = expected = spread = 0.0
    for one in kept:
        apart += sum(n * float((m - one.mean) @ (m - one.mean)) for n, m in one.at.values())
        expected += (len(one.at) - 1) * one.trace
        inverse = sum((1 - n / one.total) ** 2 / n for n, _ in one.at.values())
        spread += one.trace**2 * (2 * (len(one.at) - 1) * rho + (heavy - 2 * rho) * inverse)
    return slow_p(apart / expected, expected, spread, heavy, [len(one.at) - 1.0 for one in kept], kept)


def slow_by_site(kept: list[Known], rho: float, heavy: float) -> float:
    """All classes of a site together: every covariance of two sites by itself."""
    there = sorted({site for one in kept for site in one.at})
    row = {site: sum(one.samples(site) for one in kept) for site in there}
    value = 0.0
    for site in there:
        shift = np.asarray(sum(one.at[site][0] * (one.at[site][1] - one.mean) for one in kept if site in one.at))
        value += float(shift @ shift) / row[site]
    covariance = np.zeros((len(there), len(there)))
    for a, i in enumerate(there):
        for b, j in enumerate(there):
            for one in kept:
                same = one.samples(i) if i == j else 0.0
                covariance[a, b] += (same - one.samples(i) * one.samples(j) / one.total) * one.trace
            covariance[a, b] /= np.sqrt(row[i] * row[j])
    few = sum(covariance[a, a] ** 2 / row[i] for a, i in enumerate(there))
    parts = [sum(one.samples(i) / row[i] * (1 - one.samples(i) / one.total) for i in there) for one in kept]
    spread = 2 * rho * float((covariance**2).sum()) + (heavy - 2 * rho) * few
    expected = float(np.trace(covariance))
    return slow_p(value / expected, expected, spread, heavy, parts, kept)


def slow_noise(signatures: list[Signature], sizes: list[int]) -> tuple[list[Known], float, float]:
    """The classes that tell something, one over the effective dimension of the noise, and its tails."""
    shape, shape_weight, tail, tail_weight = 1 / 8 * 8, 8.0, 0.0, 0.0
    kept = []
    for label in sorted({int(c) for s in signatures for c in s.classes}):
        rows = [(i, int(np.flatnonzero(s.classes == label)[0])) for i, s in enumerate(signatures) if label in s.classes]
        samples = [round(float(signatures[i].shares[row]) * sizes[i]) for i, row in rows]
        if len(rows) < 2 or sum(samples) <= len(rows):
            continue
        scatter = [float(signatures[i].scatter[row]) for i, row in rows]
        free = sum(samples) - len(rows)
        trace = sum(n * s for n, s in zip(samples, scatter, strict=True)) / free
        at = {
            i: (float(n), signatures[i].prototypes[row].astype(float))
            for (i, row), n in zip(rows, samples, strict=True)
        }
        one = Known(trace, free, at)
        kept.append(one)
        residuals = [np.sqrt(n) * (m - one.mean) for n, m in at.values()]
        q = len(rows) - 1
        if q >= 2:
            squares = sum(float(a @ b) ** 2 for a in residuals for b in residuals)
            shape += squares / (sum(float(r @ r) for r in residuals) / q) ** 2 - q
            shape_weight += (q + 2) * (q - 1)
        several = [(n, s * n / (n - 1)) for n, s in zip(samples, scatter, strict=True) if n > 1]
        tail += sum((n - 1) * (s / trace - 1) ** 2 for n, s in several)
        tail_weight += len(several) - 1
    rho = min(max(shape / shape_weight, 1 / signatures[0].dimension), 1.0)
    return kept, rho, max(2 * rho, tail / tail_weight if tail_weight else 0.0)


def slow_means(signatures: list[Signature], sizes: list[int]) -> float:
    """The tests of class means, read aloud."""
    kept, rho, heavy = slow_noise(signatures, sizes)
    found = min(slow_by_class(kept, rho, heavy), slow_by_site(kept, rho, heavy))
    for site in range(len(signatures)) if len(signatures) in (3, 4, 5) else ():
        found = min(found, len(signatures) * slow_alone(kept, rho, heavy, site))
    return min(1.0, 2 * found)


def slow_alone(kept: list[Known], rho: float, heavy: float, site: int) -> float:
    """A site against all others as one."""
    against = []
    for one in kept:
        if site in one.at:
            others = Known(one.trace, one.free, {i: at for i, at in one.at.items() if i != site})
            against.append(Known(one.trace, one.free, {0: one.at[site], 1: (others.total, others.mean)}))
    return min(slow_by_class(against, rho, heavy), slow_by_site(against, rho, heavy)) if against else 1.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), sites=st.integers(2, 7), classes=st.integers(1, 4), shifted=st.booleans())
def test_means_equal_the_slow_version(seed: int, sites: int, classes: int, shifted: bool) -> None:
    shifts = np.random.default_rng(seed).normal(size=(sites, 12)) * 0.3 if shifted else None
    signatures, sizes = federation(seed, iid(seed, sites, classes), shifts=shifts)
    assert chance_of(signatures, sizes).means == pytest.approx(slow_means(signatures, sizes), rel=1e-6, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), sites=st.integers(2, 8), classes=st.integers(1, 4))
def test_the_last_against_all_others_equals_the_slow_version(seed: int, sites: int, classes: int) -> None:
    counts = iid(seed, sites, classes)
    signatures, sizes = federation(seed, counts)
    kept, rho, heavy = slow_noise(signatures, sizes)
    means = min(1.0, 2 * slow_alone(kept, rho, heavy, sites - 1))
    assert chance_of_last(signatures, sizes, shares_count=False) == pytest.approx(means, rel=1e-6, abs=1e-12)
    shares = chance_of_shares(np.stack([counts[:-1].sum(axis=0), counts[-1]]).astype(float))
    assert chance_of_last(signatures, sizes) == pytest.approx(min(1.0, 2 * min(means, shares)), rel=1e-6, abs=1e-12)


def test_nothing_connects_the_last_with_others_whose_classes_it_lacks() -> None:
    counts = np.full((8, 3), 30)
    assert chance_of_last(*federation(0, counts), shares_count=False) > LEVEL
    counts[:-1, 2], counts[-1, :2] = 0, 0
    assert chance_of_last(*federation(0, counts), shares_count=False) == 0.0


def test_shares_have_the_moments_of_tables_with_these_margins() -> None:
    rows, columns = np.array([5, 9, 30, 2, 11]), np.array([20, 6, 26, 5])
    tables = stats.random_table(rows, columns).rvs(4000, random_state=0)
    expected = np.outer(rows, columns) / rows.sum()
    statistics = ((tables - expected) ** 2 / expected).sum(axis=(1, 2))
    mean, variance = moments(rows.astype(float), columns.astype(float))
    assert statistics.mean() == pytest.approx(mean, rel=0.02)
    assert statistics.var() == pytest.approx(variance, rel=0.06)
    chances = np.array([chance_of_shares(table.astype(float)) for table in tables])
    assert np.mean(chances < LEVEL) < 2 * LEVEL


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.sampled_from([1e-3, 7.0, 1e4]))
def test_order_and_units_of_the_sites_do_not_matter(seed: int, factor: float) -> None:
    signatures, sizes = federation(seed, iid(seed, 5, 3))
    first = chance_of(signatures, sizes)
    order = np.random.default_rng(seed).permutation(5)
    second = chance_of([signatures[i] for i in order], [sizes[i] for i in order])
    scaled = [
        Signature(s.classes, (s.prototypes * factor).astype(np.float32), s.shares, s.scatter * factor**2)
        for s in signatures
    ]
    third = chance_of(scaled, sizes)
    for other in (second, third):
        assert other.means == pytest.approx(first.means, rel=1e-3)
        assert other.shares == pytest.approx(first.shares, rel=1e-9)


@pytest.mark.parametrize("spectrum", [np.ones(12), 1 / np.arange(1, 13)], ids=["isotropic", "anisotropic"])
@pytest.mark.parametrize(("sites", "classes"), [(3, 2), (8, 5)])
def test_sites_that_draw_from_the_same_data_are_seldom_told_apart(
    spectrum: NDArray[np.float64], sites: int, classes: int
) -> None:
    draws = 150
    found = sum(
        chance_of(*federation(seed, iid(seed, sites, classes), spectrum=spectrum)).ruled_out for seed in range(draws)
    )
    # At 2 x LEVEL one would see more than this once in a thousand times.
    assert found <= stats.binom.ppf(0.999, draws, 2 * LEVEL)


@pytest.mark.parametrize("sites", [2, 3, 10])
def test_differences_are_found_and_told_apart(sites: int) -> None:
    even = np.full((sites, 4), 20)
    shifts = np.outer(np.arange(sites) % 2, np.ones(12))
    images = chance_of(*federation(0, even, shifts=shifts))
    assert images.means_differ
    assert not images.shares_differ
    skewed = even.copy()
    skewed[0] = [50, 10, 10, 10]
    shares = chance_of(*federation(0, skewed))
    assert shares.shares_differ
    assert not shares.means_differ


# Classes that sites do not name

RARE = np.array([0.1] * 3 + [0.01] * 70)


def named(counts: NDArray[np.int64], least: int = 10) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What sites name of their samples, and how many they withhold; without sites that name nothing."""
    told = np.where(counts >= least, counts, 0)
    names_some = told.any(axis=1)
    return told[names_some], (counts - told).sum(axis=1)[names_some]


def withholding(seed: int, counts: NDArray[np.int64]) -> Chance:
    told, withheld = named(counts)
    signatures, sizes = federation(seed, told)
    return chance_of(signatures, sizes, withheld)


@pytest.mark.parametrize("shares", [np.full(10, 0.1), RARE], ids=["alike", "many rare"])
@pytest.mark.parametrize("sites", [3, 8])
def test_classes_that_are_withheld_are_no_difference(sites: int, shares: NDArray[np.float64]) -> None:
    draws = [np.random.default_rng(seed).multinomial(100, shares, size=sites) for seed in range(40)]
    found = sum(withholding(seed, counts).ruled_out for seed, counts in enumerate(draws))
    assert found <= stats.binom.ppf(0.999, len(draws), 2 * LEVEL)
    # As true zeros they would be one.
    assert sum(chance_of_shares(named(counts)[0].astype(float)) < LEVEL for counts in draws) > 0.9 * len(draws)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_other_class_shares_are_found_where_classes_are_withheld(alpha: float) -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(6, alpha), 10).T
        counts = np.stack([rng.multinomial(100, one / one.sum()) for one in shares])
        found += withholding(seed, counts).shares_differ
    assert found >= 18


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), sites=st.integers(1, 7), classes=st.integers(1, 12))
def test_withheld_samples_are_spread_as_all_samples_are(seed: int, sites: int, classes: int) -> None:
    told, withheld = named(iid(seed, sites, classes, samples=60))
    if not withheld.any():
        return
    spread = with_withheld(told.astype(float), withheld)
    # The same, read aloud: a dictionary of classes, with None for those that nobody names.
    columns: list[int | None] = [*np.flatnonzero(told.any(axis=0)).tolist(), None]
    table = [{c: 0.0 if c is None else float(row[c]) for c in columns} for row in told]
    weights: dict[int | None, float] = dict.fromkeys(columns, 1.0)
    for _ in range(ITERATIONS):
        full = []
        for row, rest in zip(table, withheld.tolist(), strict=True):
            free = sum(weights[c] for c in columns if not row[c])
            full.append({c: row[c] or rest * weights[c] / free for c in columns})
        weights = {c: sum(row[c] for row in full) for c in columns}
    kept = [c for c in columns if weights[c] >= 1]
    np.testing.assert_allclose(spread, [[row[c] for c in kept] for row in full], rtol=1e-9)
    # What is named stays, and nobody has more or fewer samples than it said.
    assert np.array_equal(spread[:, : len(columns) - 1][told[:, told.any(axis=0)] > 0], told[told > 0])
    np.testing.assert_allclose(spread.sum(axis=1), told.sum(axis=1) + withheld, atol=1)


def test_one_site_equal_sites_and_single_samples_say_nothing() -> None:
    signatures, sizes = federation(0, iid(0, 1, 3))
    assert chance_of(signatures, sizes) == Chance(1.0, 1.0)
    assert chance_of(signatures * 4, sizes * 4).means > 0.9
    singles, ones = federation(0, np.array([[1, 0], [0, 1], [1, 0]]))
    assert chance_of(singles, ones).means == 1.0
    assert not chance_of(singles, ones).ruled_out


def test_without_scatter_every_difference_counts_and_none_does_not() -> None:
    signatures, _ = federation(0, np.full((3, 2), 20))
    bare = [Signature(s.classes, s.prototypes, s.shares) for s in signatures]
    counts = [s.shares * 40 for s in bare]
    assert chance_of_means(bare, counts) == 0.0
    assert chance_of_means([bare[0]] * 3, counts) == 1.0


# The number of groups


def disjoint(sites: int, groups: int, per_group: int = 2, samples: int = 20) -> tuple[list[Signature], list[int]]:
    rng = np.random.default_rng(0)
    counts = np.zeros((sites, groups * per_group), int)
    for site in range(sites):
        own = slice(site % groups * per_group, (site % groups + 1) * per_group)
        counts[site, own] = rng.multinomial(samples, np.full(per_group, 1 / per_group))
    return federation(0, counts)


@pytest.mark.parametrize(("sites", "groups"), [(2, 2), (3, 2), (4, 2), (6, 3), (6, 6), (100, 5), (400, 5)])
def test_disjoint_labels_part_the_groups(sites: int, groups: int) -> None:
    signatures, sizes = disjoint(sites, groups)
    distance = overlap_distance(signatures, rule="guarded")
    labels, selection = agglomerate_guarded(distance, chance_of(signatures, sizes))
    assert selection.k == groups
    assert labels.tolist() == [site % groups for site in range(sites)]


def test_nobody_with_a_class_in_common_trains_alone_beyond_k_max() -> None:
    signatures, sizes = disjoint(15, 15)
    labels, selection = agglomerate_guarded(overlap_distance(signatures, rule="guarded"), chance_of(signatures, sizes))
    assert selection.k == 15
    assert labels.tolist() == list(range(15))


def test_two_clean_groups_are_two() -> None:
    for seed in range(5):
        shifts = np.outer(np.arange(20) % 2, 3 * np.random.default_rng(seed).normal(size=12))
        signatures, sizes = federation(seed, np.full((20, 3), 30), shifts=shifts)
        distance = overlap_distance(signatures, rule="guarded")
        _, published = agglomerate_auto(distance)
        _, guarded = agglomerate_guarded(distance, chance_of(signatures, sizes))
        assert published.cv > 0.7
        assert 2 not in published.window
        assert guarded.k == 2


def test_odd_sites_do_not_hide_the_groups_of_the_others() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(6, 2)) * 0.1 + corner for corner in ([0, 0], [3, 0], [0, 3])])
    odd = np.concatenate([points, [[60.0, 60.0]]])
    distance = np.sqrt(((odd[:, None] - odd) ** 2).sum(axis=-1))
    labels, selection = agglomerate_guarded(distance, CERTAIN)
    assert selection.scores[2] > selection.scores[4]
    assert labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [3]
    # Without groups among the others it is the odd one that is told apart.
    crowd = np.concatenate([rng.normal(size=(9, 9)), [np.full(9, 60.0)]])
    distance = np.sqrt(((crowd[:, None] - crowd) ** 2).sum(axis=-1))
    assert agglomerate_guarded(distance, CERTAIN)[0].tolist() == [0] * 9 + [1]


def test_chance_decides_on_one_group() -> None:
    distance = overlap_distance(federation(0, iid(0, 6, 3))[0], rule="guarded")
    assert agglomerate_guarded(distance, Chance(0.5, 0.5))[1].k == 1
    assert agglomerate_guarded(distance, CERTAIN)[1].k > 1
    # Where the fingerprints do not tell, the silhouette decides as before.
    assert agglomerate_guarded(distance)[1].k > 1
    assert agglomerate_guarded(np.ones((5, 5)) - np.eye(5))[1].k == 1
    assert agglomerate_guarded(distance, CERTAIN, k_max=1)[1].k == 1
    assert agglomerate_guarded(np.zeros((1, 1)), CERTAIN)[1].k == 1
    with pytest.raises(ValueError, match="k_max"):
        agglomerate_guarded(distance, k_max=0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_order_of_sites_does_not_change_the_groups(seed: int) -> None:
    shifts = np.random.default_rng(seed).normal(size=(3, 12))[np.arange(9) % 3]
    signatures, sizes = federation(seed, iid(seed, 9, 3), shifts=shifts)
    order = np.random.default_rng(seed).permutation(9)
    labels, _ = agglomerate_guarded(overlap_distance(signatures, rule="guarded"), chance_of(signatures, sizes))
    moved = [signatures[i] for i in order]
    again, _ = agglomerate_guarded(overlap_distance(moved, rule="guarded"), CERTAIN)
    assert np.array_equal(np.equal.outer(labels, labels)[np.ix_(order, order)], np.equal.outer(again, again))


def test_disjoint_sites_are_farther_apart_than_most_others() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.uniform(size=(30, 30))
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, np.nan)
    matrix[:3, 3:6] = matrix[3:6, :3] = np.nan
    defined = matrix[~np.isnan(matrix)]
    p95, p99 = np.percentile(defined, [95, 99])
    assert disjoint_distance(matrix, "guarded") == pytest.approx(2 * p95)
    assert disjoint_distance(matrix) == disjoint_distance(matrix, "published") == pytest.approx(min(2 * p95, p99))
    assert disjoint_distance(np.full((2, 2), np.nan), "guarded") == 1.0


# Newcomers


def two_groups(seed: int, gap: float, samples: int = 30) -> tuple[list[Signature], NDArray[np.int64]]:
    labels = np.arange(10) % 2
    direction = np.random.default_rng(seed).normal(size=12)
    signatures, _ = federation(seed, np.full((10, 3), samples), shifts=gap * np.outer(labels, direction))
    return signatures, labels


def placed(seed: int, gap: float, away: float = 0.0, samples: int = 10) -> Place:
    """A newcomer of group 1 among nine members; `away`: it is unlike all of them by so much."""
    labels = np.arange(10) % 2
    rng = np.random.default_rng((seed, 2))
    shifts = gap * np.outer(labels, np.random.default_rng(seed).normal(size=12))
    shifts[9] += away * rng.normal(size=12)
    counts = np.full((10, 3), 30)
    counts[9] = samples
    signatures, sizes = federation(seed, counts, shifts=shifts)
    return find_place(
        signatures[9],
        sizes[9],
        signatures[:9],
        sizes[:9],
        labels[:9],
        lambda s, _: overlap_distance(s, rule="guarded"),
        lambda among: chance_of_last(
            [*(signatures[i] for i in among), signatures[9]], [*(sizes[i] for i in among), sizes[9]]
        ),
        rng,
    )


def test_a_newcomer_joins_its_group_and_knows_how_sure_that_is() -> None:
    clear = [placed(seed, gap=1.5) for seed in range(20)]
    assert all(place.group == 1 and place.confidence > 0.95 for place in clear)
    # Where groups are the same, nothing is sure; where they are a little apart, being right goes with being sure.
    unclear = [placed(seed, gap=0.0) for seed in range(20)]
    assert np.mean([place.confidence for place in unclear]) < 0.9
    close = [placed(seed, gap=0.15, samples=6) for seed in range(40)]
    right = np.array([place.group == 1 for place in close])
    sure = np.array([place.confidence for place in close])
    assert sure.mean() == pytest.approx(right.mean(), abs=0.2)


def test_a_newcomer_that_fits_nowhere_is_told_so() -> None:
    assert sum(not placed(seed, gap=1.5).fits for seed in range(40)) <= stats.binom.ppf(0.999, 40, 0.05)
    assert sum(not placed(seed, gap=1.5, away=2.0).fits for seed in range(20)) >= 19


def test_a_newcomer_to_one_group_and_to_one_site() -> None:
    signatures, _ = two_groups(0, 0.0)
    rng = np.random.default_rng(0)
    for members in (signatures[:9], signatures[:1]):
        place = find_place(
            signatures[9],
            90,
            members,
            [90] * len(members),
            np.zeros(len(members), np.int64),
            appearance_distance,
            lambda among: 0.5,
            rng,
        )
        assert place.group == 0
        assert place.confidence == 1.0
        assert place.fits


def test_many_members_are_sampled_from_every_group() -> None:
    labels = np.sort(np.arange(400) % 7)
    chosen = _sample(labels)
    assert len(chosen) <= MOST_MEMBERS
    assert set(labels[chosen].tolist()) == set(range(7))
    assert _sample(np.arange(150)).tolist() == list(range(150))
