"""One data set dealt out to sites: disjoint, complete, large enough, reproducible."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.data.partition import partition
from common.config import PartitionSettings, SettingsError

# Sites that bring data of their own are dealt nothing.
SCHEMES = tuple(s for s in get_args(PartitionSettings.model_fields["scheme"].annotation) if s != "own")
Labels = NDArray[np.int64]


def labels_of(counts: list[int]) -> Labels:
    """Return `counts[c]` labels of each class c, in no order a scheme could profit from."""
    return np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))


def deal(labels: Labels, sites: int, seed: int = 0, members: Any = None, **options: Any) -> list[Labels]:
    return partition(labels, members, sites, PartitionSettings(**options), seed)


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    sites=st.integers(1, 10),
    scheme=st.sampled_from(SCHEMES),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    min_size=st.integers(2, 8),
    per_site=st.integers(1, 3),
    label_groups=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_shares_are_disjoint_complete_large_enough_and_reproducible(
    *,
    counts: list[int],
    sites: int,
    scheme: Any,
    alpha: float,
    min_size: int,
    per_site: int,
    label_groups: int,
    seed: int,
) -> None:
    labels = labels_of(counts)
    groups = np.array([f"patient {row % 25}" for row in range(len(labels))])
    options = PartitionSettings(
        scheme=scheme, alpha=alpha, min_size=min_size, classes_per_site=per_site, groups=label_groups
    )
    try:
        shares = partition(labels, groups, sites, options, seed)
    except SettingsError:
        # Only these two can always be dealt out when there are enough samples.
        assert scheme not in ("dirichlet", "iid") or len(labels) < sites * min_size
        return
    everything = np.concatenate(shares)
    assert len(shares) == sites
    assert len(np.unique(everything)) == len(everything)
    if scheme != "classes" or sites * per_site >= len(counts):
        assert len(everything) == len(labels)
    assert all(len(share) >= min_size and np.all(np.diff(share) > 0) for share in shares)
    again = partition(labels, groups, sites, options, seed)
    assert all(np.array_equal(one, other) for one, other in zip(shares, again, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_seed_deals_differently(scheme: str) -> None:
    labels = labels_of([40] * 6)
    groups = np.array([str(row // 4) for row in range(240)])
    one, other = (deal(labels, 6, seed, groups, scheme=scheme, groups=2) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_small_alpha_skews_and_large_alpha_does_not() -> None:
    labels = labels_of([300] * 5)

    def largest_class_share(alpha: float) -> float:
        shares = deal(labels, 8, alpha=alpha)
        return float(np.mean([np.bincount(labels[share]).max() / len(share) for share in shares]))

    assert largest_class_share(0.05) > 0.7
    assert largest_class_share(1000.0) < 0.3


def test_repair_serves_every_site_and_keeps_the_skew() -> None:
    """780 samples of 3 classes on 20 sites with alpha = 0.1: no draw alone gives every site 10 samples."""
    labels = labels_of([437, 210, 133])
    shares = deal(labels, 20, alpha=0.1, min_size=10)
    assert min(map(len, shares)) == 10
    dominant = [np.bincount(labels[share]).max() / len(share) for share in shares]
    assert np.mean(dominant) > 0.8


def test_a_bad_draw_is_drawn_again_and_not_repaired() -> None:
    """A quarter of these draws leave a site too small. Repair would leave it at exactly `min_size`."""
    labels = labels_of([180] * 10)
    smallest = [min(map(len, deal(labels, 10, seed, alpha=0.1, min_size=10))) for seed in range(20)]
    assert min(smallest) > 10


def test_exactly_enough_samples_is_enough() -> None:
    assert [len(share) for share in deal(labels_of([30, 30]), 6, alpha=0.01, min_size=10)] == [10] * 6


@pytest.mark.parametrize("scheme", SCHEMES)
def test_too_few_samples_is_an_error_with_the_numbers(scheme: str) -> None:
    with pytest.raises(SettingsError, match=r"19 samples .* 2 sites .* 10 \(20 needed\)"):
        deal(labels_of([10, 9]), 2, scheme=scheme, min_size=10)


@given(sites=st.integers(1, 12), per_site=st.integers(1, 5), seed=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_classes_holds_k_per_site_and_forgets_none(sites: int, per_site: int, seed: int) -> None:
    labels = labels_of([60] * 7)
    shares = deal(labels, sites, seed, scheme="classes", classes_per_site=per_site, min_size=2)
    held = [np.unique(labels[share]) for share in shares]
    assert all(len(classes) == per_site for classes in held)
    holders = np.bincount(np.concatenate(held), minlength=7)
    assert holders.max() - holders.min() <= 1
    for label in np.flatnonzero(holders):
        sizes = [int((labels[share] == label).sum()) for share in shares if (labels[share] == label).any()]
        assert max(sizes) - min(sizes) <= 1


def test_classes_are_drawn_at_random_not_in_fixed_pairs() -> None:
    """Fixed pairs would be `disjoint` under another name."""
    labels = labels_of([60] * 10)
    shares = deal(labels, 20, scheme="classes", classes_per_site=2, min_size=2)
    assert len({tuple(np.unique(labels[share])) for share in shares}) > 8


def test_more_classes_per_site_than_classes_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"classes_per_site = 4 .* 3 classes"):
        deal(labels_of([30] * 3), 2, scheme="classes", classes_per_site=4)


@pytest.mark.parametrize("overlap", [1, 2])
def test_overlapping_groups_share_so_many_labels_with_each_neighbour(overlap: int) -> None:
    labels = labels_of([50] * 10)
    shares = deal(labels, 10, scheme="disjoint", groups=5, overlap=overlap)
    held = [frozenset(np.unique(labels[share]).tolist()) for share in shares]
    assert held[:5] == held[5:]
    for group in range(5):
        assert len(held[group]) == 2 + overlap
        assert len(held[group] & held[(group + 1) % 5]) == overlap
        assert not held[group] & held[(group + 2) % 5]
    assert sum(len(share) for share in shares) == len(labels)


def test_groups_cannot_share_more_labels_than_they_have() -> None:
    labels = labels_of([50] * 10)
    with pytest.raises(SettingsError, match=r"partition.overlap = 3: 5 groups of 10 classes have 2 of their own"):
        deal(labels, 10, scheme="disjoint", groups=5, overlap=3)
    with pytest.raises(SettingsError, match=r"partition.overlap = 1"):
        deal(labels, 10, scheme="disjoint", groups=1, overlap=1)


def test_disjoint_groups_share_no_label_and_sites_are_dealt_evenly() -> None:
    labels = labels_of([50] * 10)
    shares = deal(labels, 11, scheme="disjoint", groups=5)
    held = [frozenset(np.unique(labels[share]).tolist()) for share in shares]
    distinct = set(held)
    assert len(distinct) == 5
    assert len(frozenset().union(*distinct)) == sum(map(len, distinct)) == 10
    assert sorted(held.count(group) for group in distinct) == [2, 2, 2, 2, 3]


@pytest.mark.parametrize(("groups", "classes", "sites"), [(4, 3, 8), (4, 8, 3)])
def test_more_label_groups_than_classes_or_sites_is_an_error(groups: int, classes: int, sites: int) -> None:
    with pytest.raises(SettingsError, match=f"groups = 4 .* {classes} classes .* {sites} sites"):
        deal(labels_of([40] * classes), sites, scheme="disjoint", groups=groups)


def test_iid_is_even_overall_and_per_class() -> None:
    labels = labels_of([31, 17, 53])
    counts = np.array([np.bincount(labels[share], minlength=3) for share in deal(labels, 4, scheme="iid")])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_group_keeps_groups_whole_and_balances_sizes() -> None:
    groups = np.repeat([f"clinic {number}" for number in range(12)], [40, 30, 30, *[10] * 9])
    shares = deal(labels_of([95, 95]), 4, members=groups, scheme="group")
    owners = [set(groups[share]) for share in shares]
    assert sum(map(len, owners)) == 12
    assert sorted(map(len, shares)) == [40, 50, 50, 50]


def test_group_without_groups_or_with_too_few_is_an_error() -> None:
    labels = labels_of([40, 40])
    with pytest.raises(SettingsError, match="needs data with groups"):
        deal(labels, 2, scheme="group")
    with pytest.raises(SettingsError, match="1 groups are too few for 2 sites"):
        deal(labels, 2, members=np.array(["a"] * 80), scheme="group")
