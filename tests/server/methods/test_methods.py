"""Partition rules: how groups form, and where a newcomer goes."""

from __future__ import annotations

import numpy as np
import pytest

from client.methods import site_method
from common import wire
from common.config import ClusterSettings, Config, SettingsError
from common.head_path import HeadPath
from common.methods import AGREEMENTS
from common.site_card import SiteCard
from server.methods import METHODS, get_method
from server.methods.partition import Agglomerative, Alone, KMeans, Modularity, OneGroup

TWO_BLOCKS = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]], float)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (ClusterSettings(), [0, 0, 1, 1]),
        (ClusterSettings(k=1), [0, 0, 0, 0]),
        (ClusterSettings(k=4), [0, 1, 2, 3]),
        (ClusterSettings(k=9), [0, 1, 2, 3]),
        (ClusterSettings(threshold=0.5), [0, 1, 2, 3]),
        (ClusterSettings(threshold=2.0), [0, 0, 1, 1]),
        (ClusterSettings(threshold=100.0), [0, 0, 0, 0]),
    ],
)
def test_groups_follow_the_settings(settings: ClusterSettings, labels: list[int]) -> None:
    assert Agglomerative().form(TWO_BLOCKS, 4, settings).labels.tolist() == labels


@pytest.mark.parametrize("settings", [ClusterSettings(), ClusterSettings(k=1), ClusterSettings(threshold=100.0)])
def test_modularity_chooses_the_number_of_groups_whatever_the_settings_say(settings: ClusterSettings) -> None:
    distance = TWO_BLOCKS / 9
    assert Modularity().form(distance, 4, settings).labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("rule", [Agglomerative(), Modularity()])
def test_a_newcomer_joins_the_nearest_group(rule: Agglomerative | Modularity) -> None:
    labels = np.array([0, 0, 1, 1])
    placement = rule.place(np.array([9.0, 9.0, 1.0, 2.0]), labels)
    assert placement.group == 1
    assert placement.confidence == pytest.approx(1 - 1.5 / 9)


def test_a_finer_resolution_parts_what_the_published_one_keeps_together() -> None:
    # Two pairs that are alike, and a little like each other.
    distance = np.array([[0, 0.1, 0.6, 0.6], [0.1, 0, 0.6, 0.6], [0.6, 0.6, 0, 0.1], [0.6, 0.6, 0.1, 0]])
    sizes = [Modularity().form(distance, 4, ClusterSettings(resolution=r)).labels.max() + 1 for r in (0.3, 1.0, 3.0)]
    assert sizes == [1, 2, 4]


@pytest.mark.parametrize(("k", "labels"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (9, [0, 1, 2, 3])])
def test_k_means_sees_directions_by_their_cosines(k: int, labels: list[int]) -> None:
    angles = np.array([0.0, 2.0, 0.1, 2.2])
    distance = 1.0 - np.cos(angles[:, None] - angles)
    assert KMeans().form(distance, 4, ClusterSettings(k=k)).labels.tolist() == labels


def test_a_newcomer_between_two_groups_is_placed_without_confidence() -> None:
    placement = Agglomerative().place(np.array([3.0, 3.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    assert (placement.group, placement.confidence) == (0, 0.0)


def test_a_newcomer_identical_to_everybody_does_not_divide_by_zero() -> None:
    assert Agglomerative().place(np.zeros(2), np.array([0, 1])).confidence == 0.0
    assert Agglomerative().place(np.zeros(2), np.array([0, 0])).confidence == 1.0


def test_extremes() -> None:
    settings = ClusterSettings()
    assert OneGroup().form(None, 3, settings).labels.tolist() == [0, 0, 0]
    assert OneGroup().place(None, np.zeros(3, np.int64)).group == 0
    assert Alone().form(None, 3, settings).labels.tolist() == [0, 1, 2]
    assert Alone().place(None, np.arange(3)).group == 3


def test_registry_names_match_and_unknown_ones_are_explained() -> None:
    assert all(name == method.name for name, method in METHODS.items())
    with pytest.raises(SettingsError, match="did you mean fedavg"):
        get_method("fedavgg")


def test_only_clustered_methods_have_groups_to_move_between() -> None:
    before_training = {name for name, method in METHODS.items() if method.family == "clustered before training"}
    # FlexCFL has a rule of its own for who moves.
    others = before_training - {"flexcfl"} | {"dc-cfl"}
    assert {name for name, method in METHODS.items() if method.clustered} == others
    assert {name for name, method in METHODS.items() if method.migration != "off"} == {
        "fedcm",
        "fedcm-hierarchical",
        "fedcm-whole",
        "fedcm-k-means",
    }


def test_the_distance_of_paths_is_one_minus_their_cosine() -> None:
    paths = [HeadPath(np.array([row], np.float32)) for row in ([3, 4], [6, 8], [-3, -4], [4, -3])]
    sites = [
        wire.Introduction(SiteCard(f"{number:03d}", 1, 0, (1,), 0, (), keeps=False), path, 0.0)
        for number, path in enumerate(paths)
    ]
    distance = METHODS["fedcm"].distance
    assert distance is not None
    np.testing.assert_allclose(distance(sites, Config())[0], [0, 0, 2, 1], atol=1e-12)


@pytest.mark.parametrize("rule", sorted({method.rule for method in METHODS.values()}))
def test_sites_know_every_rule_that_methods_ask_for(rule: str) -> None:
    assert site_method(rule).agreement.rule == rule


def test_a_rule_that_sites_do_not_know_is_never_looked_for() -> None:
    for name in ("of-tomorrow", "method", "../app", "os"):
        with pytest.raises(wire.WireError, match="knows no rule"):
            site_method(name)


def test_every_agreement_has_a_method() -> None:
    # A rehearsal is no method: methods that group by signatures may ask for one.
    assert set(AGREEMENTS) - {"rehearsal"} <= {method.rule for method in METHODS.values()} | set(METHODS)
