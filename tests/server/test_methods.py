"""Partition rules: how groups form, and where a newcomer goes."""

from __future__ import annotations

import numpy as np
import pytest

from client.objectives import OBJECTIVES
from common.config import ClusterSettings, SettingsError
from common.head_path import HeadPath
from server.methods import METHODS, get_method
from server.methods.partition import Agglomerative, Alone, Modularity, OneGroup

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
    assert {name for name, method in METHODS.items() if not method.clustered} == {
        "fedavg", "fedprox", "local", "cfl", "ifca", "dc",
    }  # fmt: skip
    assert {name for name, method in METHODS.items() if method.migration != "off"} == {"fedcm"}


def test_the_distance_of_paths_is_one_minus_their_cosine() -> None:
    paths = [HeadPath(np.array([row], np.float32)) for row in ([3, 4], [6, 8], [-3, -4], [4, -3])]
    distance = METHODS["fedcm"].distance
    assert distance is not None
    np.testing.assert_allclose(distance(paths, ClusterSettings())[0], [0, 0, 2, 1], atol=1e-12)


def test_sites_know_every_objective_that_methods_ask_for() -> None:
    assert {method.objective for method in METHODS.values()} == set(OBJECTIVES)
