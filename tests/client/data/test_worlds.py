"""Worlds with a truth: kinds of sites, their devices and their names for things."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from client.data import SiteData, load_site
from client.data.alterations import Alteration, altered
from client.data.worlds import namings, recipes
from client.identity import Identity
from client.request import embedded
from common.config import Config, PartitionSettings, SettingsError, parse
from common.worlds import site_kinds, truth_of
from server.clustering.rand_index import adjusted_rand_index
from server.history.truth import agreement_with_truth
from tests.support.runs import MakeConfig, run_to_disk
from tests.support.tables import wine_settings

PLAIN = {"partition.scheme": "iid"}


def sites_of(config: Config) -> list[SiteData]:
    return [
        load_site(Identity(f"{index:03d}", None, (index, config.sites), None), config.for_site())
        for index in range(config.sites)
    ]


@given(sites=st.integers(2, 40), kinds=st.integers(2, 8), seed=st.integers(0, 3))
def test_kinds_are_of_equal_size_and_drawn_by_the_seed(sites: int, kinds: int, seed: int) -> None:
    settings = PartitionSettings(shift="devices", kinds=kinds)
    drawn = site_kinds(settings, sites, seed)
    sizes = np.bincount(drawn, minlength=kinds)
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(drawn, site_kinds(settings, sites, seed))
    assert not site_kinds(PartitionSettings(kinds=kinds), sites, seed).any()


@given(kinds=st.integers(2, 9), seed=st.integers(0, 5))
def test_no_two_kinds_call_a_class_the_same(kinds: int, seed: int) -> None:
    names = namings(kinds, 9, seed)
    assert names[0].tolist() == list(range(9))
    for column in names.T:
        assert len(set(column.tolist())) == kinds
    for row in names:
        assert sorted(row.tolist()) == list(range(9))


def test_more_kinds_than_classes_cannot_differ_in_all_names() -> None:
    with pytest.raises(SettingsError, match=r"partition.kinds = 4 is more than the 3 classes"):
        namings(4, 3, 0)


def test_more_kinds_than_sites_are_refused(small_config: MakeConfig) -> None:
    with pytest.raises(SettingsError, match=r"partition.kinds = 7 is more than sites = 6"):
        small_config(partition__shift="devices", partition__kinds=7)


@given(kinds=st.integers(2, 12), seed=st.integers(0, 5))
def test_devices_are_drawn_by_the_seed_and_differ_from_their_neighbours(kinds: int, seed: int) -> None:
    drawn = recipes(kinds, seed)
    assert drawn == recipes(kinds, seed)
    assert drawn[0] == ()
    assert len(set(drawn)) == kinds
    changes = [{change for change, _ in recipe} for recipe in drawn[1:4]]
    assert all(len(one) == 2 for one in changes)
    assert len(set().union(*changes)) == 2 * len(changes)


@pytest.mark.parametrize("kind", ["noise", "rotate", "colour", "blur", "contrast", "invert"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_change_is_seen_alike_by_whoever_looks(kind: str, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, channels), np.uint8)
    positions = np.array([4, 9, 2])
    change = [Alteration(kind, 0.5, np.array([2, 4, 9]))]  # type: ignore[arg-type]
    shown = altered(pixels, positions, change)
    assert shown.shape == pixels.shape
    assert not np.array_equal(shown, pixels)
    # One by one as all together: what a sample looks like does not depend on its company.
    for row in range(3):
        assert np.array_equal(altered(pixels[row : row + 1], positions[row : row + 1], change)[0], shown[row])


def test_a_turn_by_half_a_circle_turns_an_image_round() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    turned = altered(pixels, np.arange(2), [Alteration("rotate", 1.0, np.arange(2))])
    assert np.array_equal(turned, pixels[:, ::-1, ::-1])


def test_noise_has_its_strength_at_every_resolution() -> None:
    for side in (16, 64):
        grey = np.full((40, side, side, 1), 128, np.uint8)
        noisy = altered(grey, np.arange(40), [Alteration("noise", 0.2, np.arange(40))])
        assert noisy.std() == pytest.approx(0.2 * 127.5, rel=0.05)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "disjoint"])
def test_devices_change_images_and_nothing_else(small_config: MakeConfig, scheme: str) -> None:
    plain = sites_of(small_config(partition__scheme=scheme, partition__groups=2))
    config = small_config(partition__scheme=scheme, partition__groups=2, partition__shift="devices")
    truth = site_kinds(config.partition, config.sites, config.seed)
    assert set(truth.tolist()) == {0, 1, 2}
    for before, after, kind in zip(plain, sites_of(config), truth, strict=True):
        assert np.array_equal(before.train, after.train)
        assert np.array_equal(before.test, after.test)
        assert np.array_equal(before.train_labels, after.train_labels)
        for one, other in ((before.train_images, after.train_images), (before.test_images, after.test_images)):
            assert np.array_equal(one(), other()) == (kind == 0)


def test_concepts_change_names_and_nothing_else(small_config: MakeConfig) -> None:
    config = small_config(**PLAIN, partition__shift="concept", partition__kinds=2, seed=3)
    truth = site_kinds(config.partition, config.sites, config.seed)
    names = namings(2, 10, 3)
    for before, after, kind in zip(sites_of(small_config(**PLAIN, seed=3)), sites_of(config), truth, strict=True):
        assert np.array_equal(before.train_images(), after.train_images())
        assert np.array_equal(names[kind][before.train_labels], after.train_labels)
        assert np.array_equal(names[kind][before.test_labels], after.test_labels)


def test_instruments_change_a_table_s_columns_by_an_affine_map(tmp_path: Path) -> None:
    before = sites_of(parse(wine_settings(tmp_path)))
    config = parse(wine_settings(tmp_path, partition__shift="devices", partition__kinds=2))
    truth = site_kinds(config.partition, config.sites, config.seed)
    for one, other, kind in zip(before, sites_of(config), truth, strict=True):
        assert np.array_equal(one.train_labels, other.train_labels)
        same = np.array_equal(one.train_inputs(), other.train_inputs())
        assert same == (kind == 0)
        # One line per column explains every row.
        for plain, seen in zip(one.train_inputs().T, other.train_inputs().T, strict=True):
            slope, offset = np.polyfit(plain, seen, 1)
            assert 0.49 < slope < 2.01
            np.testing.assert_allclose(slope * plain + offset, seen, atol=1e-4)


def test_embeddings_are_those_of_the_site_s_own_device(small_config: MakeConfig, tmp_path: Path) -> None:
    """The cache is shared by all sites and worlds, and a device's images are never taken for another's."""
    config = small_config(**PLAIN, cache=str(tmp_path), encoder__name="pixels", partition__shift="devices")
    plain = small_config(**PLAIN, cache=str(tmp_path), encoder__name="pixels")
    truth = site_kinds(config.partition, config.sites, config.seed)
    for _ in range(2):  # the second time from the cache
        for index, kind in enumerate(truth):
            identity = Identity(f"{index:03d}", None, (index, config.sites), None)
            seen, before = load_site(identity, config.for_site()), load_site(identity, plain.for_site())
            vectors = embedded(seen, seen.train, identity, config.for_site())
            fresh = seen.images.images(seen.train, 32, 3)
            alone = embedded(before, before.train, identity, plain.for_site())
            assert np.array_equal(vectors, alone) == (kind == 0)
            np.testing.assert_allclose(vectors.reshape(len(fresh), 3, 32, 32).transpose(0, 2, 3, 1), fresh / 255)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12))
def test_the_rand_index_is_scikit_learn_s(pairs: list[tuple[int, int]]) -> None:
    one, other = zip(*pairs, strict=True)
    assert adjusted_rand_index(one, other) == pytest.approx(adjusted_rand_score(one, other))
    assert adjusted_rand_index(other, one) == pytest.approx(adjusted_rand_index(one, other))
    assert adjusted_rand_index(one, [label + 7 for label in one]) == 1


def test_groups_are_held_against_the_truth_by_name(small_config: MakeConfig) -> None:
    config = small_config(partition__shift="concept")
    truth = truth_of(config)
    assert truth is not None
    assert agreement_with_truth(config, truth) == 1
    assert agreement_with_truth(config, {name: 9 - kind for name, kind in truth.items()} | {"a newcomer": 4}) == 1
    assert agreement_with_truth(config, dict.fromkeys(truth, 0)) == 0
    assert agreement_with_truth(config, {"Bern": 0, "Basel": 1}) is None
    assert agreement_with_truth(small_config(), truth) is None


@pytest.mark.federation
def test_a_run_keeps_the_truth_and_how_near_it_came(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(**PLAIN, partition__shift="concept", partition__kinds=2, rounds=1, cluster__k=2)
    folder = run_to_disk(config, tmp_path / "run")
    truth = json.loads((folder / "run.json").read_text())["truth"]
    assert truth == truth_of(config)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["ari"] == agreement_with_truth(config, summary["labels"]) == 1
    plain = run_to_disk(small_config(**PLAIN, method="fedavg", rounds=1), tmp_path / "plain")
    assert "ari" not in json.loads((plain / "summary.json").read_text())
    assert "truth" not in json.loads((plain / "run.json").read_text())
