"""Patients: nobody is at two sites, and nobody is trained on here and tested on there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.data import load_site
from client.data.partition import partition
from client.data.split import split
from client.identity import Identity
from common.config import Config, PartitionSettings, SettingsError, parse

SCHEMES: tuple[Any, ...] = tuple(
    scheme for scheme in get_args(PartitionSettings.model_fields["scheme"].annotation) if scheme != "own"
)


def patients(seed: int, count: int, classes: int, *, mixed: float) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Labels and patients of some samples, in no order: each patient has one class, but for a share of its samples."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, count)
    labels = np.repeat(rng.integers(0, classes, count), sizes)
    other = rng.random(len(labels)) < mixed
    labels[other] = rng.integers(0, classes, other.sum())
    order = rng.permutation(len(labels))
    return labels[order].astype(np.int64), np.repeat([f"patient {name}" for name in range(count)], sizes)[order]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 60),
    classes=st.integers(1, 6),
    mixed=st.sampled_from([0.0, 0.2, 1.0]),
    sites=st.integers(1, 12),
    scheme=st.sampled_from(SCHEMES),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    min_size=st.integers(2, 8),
    fraction=st.sampled_from([0.1, 0.2, 0.5]),
)
def test_no_patient_is_at_two_sites_or_on_both_sides_whatever_the_scheme(
    *,
    seed: int,
    count: int,
    classes: int,
    mixed: float,
    sites: int,
    scheme: Any,
    alpha: float,
    min_size: int,
    fraction: float,
) -> None:
    labels, groups = patients(seed, count, classes, mixed=mixed)
    options = PartitionSettings(scheme=scheme, alpha=alpha, min_size=min_size, classes_per_site=1, groups=1)
    try:
        shares = partition(labels, groups, sites, options, seed)
    except SettingsError:
        # With plenty of patients for each site it can always be done, unless the scheme ties them to classes.
        assert scheme in ("classes", "disjoint") or count < 8 * sites
        return
    owners = [set(groups[share]) for share in shares]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert all(len(share) >= min_size for share in shares)
    everything = np.concatenate(shares)
    assert len(np.unique(everything)) == len(everything)
    if scheme != "classes":
        assert len(everything) == len(labels)
    trained: set[str] = set()
    tested: set[str] = set()
    for share in shares:
        lots = np.random.default_rng(seed).random(len(share))
        train, test = split(labels[share], groups[share], np.full(len(share), -1, np.int8), fraction, lots)
        trained |= set(groups[share[train]])
        tested |= set(groups[share[test]])
    assert not trained & tested
    again = partition(labels, groups, sites, options, seed)
    assert all(np.array_equal(one, other) for one, other in zip(shares, again, strict=True))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), scheme=st.sampled_from(SCHEMES))
def test_the_names_of_the_patients_and_their_split_into_rows_do_not_matter(seed: int, scheme: Any) -> None:
    """Only who belongs together counts: names in the same order deal the same."""
    labels, groups = patients(seed, 40, 3, mixed=0.1)
    renamed = np.array([f"q{name}" for name in groups])
    options = PartitionSettings(scheme=scheme, groups=2, classes_per_site=2, min_size=2)
    for one, other in zip(
        partition(labels, groups, 5, options, seed), partition(labels, renamed, 5, options, seed), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_dirichlet_deals_patients_by_their_labels_repaired_to_min_size() -> None:
    labels, groups = patients(3, 200, 5, mixed=0.0)
    largest = {}
    for alpha in (0.05, 1000.0):
        shares = partition(labels, groups, 10, PartitionSettings(alpha=alpha, min_size=40), 0)
        assert min(map(len, shares)) >= 40
        largest[alpha] = float(np.mean([np.bincount(labels[share]).max() / len(share) for share in shares]))
    assert largest[0.05] > 0.65
    assert largest[1000.0] < 0.4


def test_single_samples_as_groups_of_their_own_are_dealt_as_evenly_as_without_groups() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [31, 17, 53]))
    alone = np.array([str(row) for row in range(len(labels))])
    shares = partition(labels, alone, 4, PartitionSettings(scheme="iid"), 0)
    counts = np.array([np.bincount(labels[share], minlength=3) for share in shares])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in ("classes", "disjoint")])
def test_every_site_has_two_patients_where_there_are_enough_so_that_it_can_be_tested(scheme: Any) -> None:
    for seed in range(5):
        labels, groups = patients(seed, 45, 3, mixed=0.1)
        shares = partition(labels, groups, 20, PartitionSettings(scheme=scheme, min_size=2), seed)
        assert min(len(set(groups[share])) for share in shares) >= 2


def test_disjoint_sites_share_no_class_if_no_patient_has_two() -> None:
    labels, groups = patients(1, 90, 6, mixed=0.0)
    shares = partition(labels, groups, 6, PartitionSettings(scheme="disjoint", groups=3), 0)
    held = {frozenset(labels[share].tolist()) for share in shares}
    assert len(held) == 3
    assert sum(map(len, held)) == len(frozenset().union(*held)) == 6


def test_too_few_patients_and_patients_too_small_are_errors_with_the_numbers() -> None:
    labels = np.zeros(60, np.int64)
    with pytest.raises(SettingsError, match="3 groups are too few for 4 sites"):
        partition(labels, np.repeat(["a", "b", "c"], 20), 4, PartitionSettings(), 0)
    with pytest.raises(SettingsError, match=r"leaves site \d with 1 samples, .*groups are not divided"):
        partition(labels, np.repeat(["a", "b", "c"], [58, 1, 1]), 3, PartitionSettings(scheme="iid"), 0)


def federation(tmp_path: Path, **settings: Any) -> Config:
    """700 samples of 45 patients at 20 sites."""
    rng = np.random.default_rng(0)
    groups = np.concatenate([np.arange(45), rng.integers(0, 45, 655)])
    labels = rng.integers(0, 3, 45)[groups]
    np.savez(tmp_path / "x.npz", x=rng.integers(0, 256, (700, 4, 4), np.uint8), y=labels, group=groups.astype(str))
    data = {
        "source": "npz",
        "path": str(tmp_path / "x.npz"),
        "image_size": 8,
        "channels": 1,
        "classes": ["0", "1", "2"],
    }
    return parse({"sites": 20, "cache": str(tmp_path / "cache"), "data": data, "rounds": 10, **settings})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_site_is_tested_on_a_patient_whom_another_site_trains_on(tmp_path: Path, scheme: str) -> None:
    config = federation(tmp_path, partition={"scheme": scheme, "groups": 3, "classes_per_site": 1, "min_size": 2})
    trained: list[set[str]] = []
    tested: set[str] = set()
    for index in range(20):
        site = load_site(Identity(f"{index:03d}", None, (index, 20), tmp_path / "cache"), config.for_site())
        assert site.samples.groups is not None
        trained.append(set(site.samples.groups[site.train].tolist()))
        tested |= set(site.samples.groups[site.test].tolist())
    assert tested
    assert not tested & set().union(*trained)
    assert sum(map(len, trained)) == len(set().union(*trained))


def test_under_drift_a_patient_changes_hands_as_a_whole(tmp_path: Path) -> None:
    scenario = [{"kind": "swap", "sites": 1.0, "at": 0.2, "over": 5}]
    config = federation(tmp_path, drift=scenario)
    moved = 0
    before: dict[str, int] = {}
    for round_number in (1, 4, 5, 6, 10):
        holders: dict[str, int] = {}
        for index in range(20):
            identity = Identity(f"{index:03d}", None, (index, 20), tmp_path / "cache")
            site = load_site(identity, config.for_site(), round_number, 10)
            assert site.samples.groups is not None
            for name in set(site.samples.groups[np.concatenate([site.train, site.test])].tolist()):
                assert name not in holders
                holders[name] = index
        moved += sum(holders[name] != place for name, place in before.items())
        before = holders
    assert moved > 0
