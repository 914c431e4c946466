"""Names are keys: a site is who its key was registered as, whatever its card says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from server.app import conduct
from server.flower.messages import NodeInfo
from server.history.events import Event, RoundFinished, RoundTrained, SiteLeftOut
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record


class RegisteredGrid(LoopbackGrid):
    """Nodes whose keys are registered under the names of their sites, but for those that `called` says otherwise of."""

    def __init__(self, sites: int, called: dict[int, str] | None = None) -> None:
        super().__init__(sites)
        self._called = called or {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, name=self._called.get(node, f"{index:03d}"))
            for node, index in self.connected.items()
        ]


@pytest.mark.parametrize("method", ["fedavg", "fmcl"])
def test_a_site_under_another_name_is_left_out_and_both_are_named(small_config: MakeConfig, method: str) -> None:
    record = Record()
    conduct(RegisteredGrid(6, {102: "clinic"}), small_config(method=method, rounds=1), [record])
    (left,) = record.of(SiteLeftOut)
    assert (left.site, left.reason) == ("clinic", "calls itself '002', but its key is registered as 'clinic'")
    assert sorted(record.of(RoundFinished)[-1].sites) == ["000", "001", "003", "004", "005"]


def test_who_comes_with_the_name_of_a_site_that_is_away_does_not_get_its_place(small_config: MakeConfig) -> None:
    grid = RegisteredGrid(6, {203: "thief"})

    class Steal:
        def hear(self, event: Event) -> None:
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.disconnect(103)
                grid.connect(203, 3)

    record = Record()
    conduct(grid, small_config(method="fedavg", rounds=3), [record, Steal()])
    assert "registered as 'thief'" in record.reasons["enrol", "thief"]
    assert 203 not in {m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"}


def test_a_site_that_does_not_answer_is_told_of_by_its_registered_name(small_config: MakeConfig) -> None:
    record = Record()
    grid = RegisteredGrid(6)
    grid._fault = lambda index, request, reply: None if index == 4 else reply
    conduct(grid, small_config(method="fedavg", rounds=0, round__deadline=1.0, round__start_timeout=1.0), [record])
    assert ("enrol", "004") in record.reasons
