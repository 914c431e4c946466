"""FedClust: the spec's vector, the linkage, newcomers from the common start."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from common import wire
from common.config import ClusterSettings, Config, parse
from common.head_change import HeadChange, InvalidHeadChange
from common.site_card import SiteCard
from server.app import conduct, initial_state
from server.clustering import merge_tree
from server.history.events import GroupsFormed, RoundTrained, SiteLeftOut, SitePlaced
from server.methods import METHODS
from server.methods.partition import Agglomerative
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, run

H = np.array([(1, 0), (1.1, 0), (0, 1), (0, 1.2)])


def distance(heads: np.ndarray, config: Config | None = None) -> np.ndarray:
    sites = [
        wire.Introduction(SiteCard(f"{n:03d}", 1, 0, (1,), 0, ()), HeadChange(head.astype(np.float32)), 0.0)
        for n, head in enumerate(heads)
    ]
    measure = METHODS["fedclust"].distance
    assert measure is not None
    return measure(sites, config or Config())


def test_vector_h() -> None:
    apart = distance(H)
    assert (apart[0, 1], apart[2, 3]) == pytest.approx((0.1, 0.2))
    assert merge_tree(apart).heights == pytest.approx([0.1, 0.2, 1.522688])
    rule = Agglomerative()
    assert rule.form(apart, 4, ClusterSettings(threshold=0.3)).labels.tolist() == [0, 0, 1, 1]
    assert rule.form(apart, 4, ClusterSettings(threshold=0.15)).labels.tolist() == [0, 0, 1, 2]
    newcomer = distance(np.vstack([H, (0.2, 0.9)]))[-1, :-1]
    assert (newcomer[:2].mean(), newcomer[2:].mean()) == pytest.approx((1.238476, 0.292081))
    assert rule.place(newcomer, np.array([0, 0, 1, 1])).group == 1


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_average_linkage_counts_every_member(seed: int, count: int) -> None:
    """PACFL takes the mean of two cluster distances, whatever the clusters' sizes."""
    apart = distance(np.random.default_rng(seed).normal(size=(count, 3)))
    theirs = linkage(squareform(apart, checks=False), "average")[:, 2]
    np.testing.assert_allclose(merge_tree(apart).heights, theirs, rtol=1e-6)


def test_the_extremes_are_local_and_fedavg() -> None:
    rule, apart = Agglomerative(), distance(H)
    assert rule.form(apart, 4, ClusterSettings(threshold=1e-9)).labels.tolist() == [0, 1, 2, 3]
    assert rule.form(apart, 4, ClusterSettings(threshold=1e9)).labels.tolist() == [0, 0, 0, 0]


@given(st.floats(1e-3, 1e3))
def test_in_parts_of_the_largest_the_length_of_the_warm_up_does_not_count(length: float) -> None:
    relative = parse({"fedclust.relative": True})
    apart = distance(H * length, relative)
    assert apart.max() == 1.0
    np.testing.assert_allclose(apart, distance(H) / distance(H).max(), atol=1e-5)
    assert not distance(np.ones((3, 2)), relative).any()


@given(st.floats(0, 6.28))
def test_a_turn_of_the_heads_changes_nothing(angle: float) -> None:
    turn = np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    np.testing.assert_allclose(distance(H @ turn), distance(H), atol=1e-5)


@pytest.mark.parametrize(
    "change", [np.zeros(3), np.zeros((1, 3), np.float32), np.zeros(0, np.float32), np.full(2, np.nan, np.float32)]
)
def test_a_change_that_is_none_is_refused(change: np.ndarray) -> None:
    with pytest.raises(InvalidHeadChange):
        HeadChange(change)


def test_a_newcomer_warms_up_from_the_common_start_not_from_a_trained_model(small_config: MakeConfig) -> None:
    config = small_config(method="fedclust", sites=4, rounds=2, cluster__k=2, round__start_timeout=0.3)
    grid = LoopbackGrid(4)
    grid.disconnect(103)

    class Late(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(103, 3)

    record = Late()
    conduct(grid, config, [record])
    assert len(set(record.of(GroupsFormed)[0].labels)) == 2
    assert [event.site for event in record.of(SitePlaced)] == ["003"]
    start = initial_state(config)
    asked = [message for message in grid.pushed if message.metadata.message_type == "query.head"]
    assert len(asked) == 4
    for message in asked:
        sent = wire.unpack_model(message.content)
        assert all(np.array_equal(sent[name], start[name]) for name in start)


def test_a_bad_head_is_refused_by_name(small_config: MakeConfig) -> None:
    def spoil(index: int, request: Message, reply: Message) -> Message:
        if index == 0 and request.metadata.message_type == "query.head":
            reply.content["head"] = wire.pack_arrays({"change": np.full(850, np.nan, np.float32)})
        return reply

    record, _ = run(small_config(method="fedclust", sites=3, rounds=0), fault=spoil)
    assert [event.stage for event in record.of(SiteLeftOut)] == ["enrol"]
    assert "not finite" in record.of(SiteLeftOut)[0].reason
