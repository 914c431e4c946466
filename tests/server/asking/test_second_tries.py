"""A site that cannot answer for a moment, when it is asked who it is, is asked again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from flwr.app import Message

from client.answers.refusal import is_passing
from client.data import DataAway, NoUsableData, load_site
from client.identity import Identity
from client.policy.rules import Declined, LedgerUnwritable
from common import wire
from common.config import SettingsError
from server.app import conduct
from server.asking import enrolment
from server.history.events import RoundTrained, RunEnded, SiteEnrolled, SiteLeftOut
from server.membership import NoSites
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record

REASON = "its data are not there; the site's own log says more"


class Away(LoopbackGrid):
    """Sites by number, and how many questions each answers with a refusal first."""

    def __init__(self, sites: int, away: dict[int, int], *, passing: bool = True) -> None:
        def refuse(index: int, request: Message, reply: Message) -> Message:
            if request.metadata.message_type.startswith("query") and self.away.get(index, 0) > 0:
                self.away[index] -= 1
                reply.content = wire.pack_refusal(REASON, passing=passing)
            return reply

        super().__init__(sites, fault=refuse)
        self.away = dict(away)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "_SECOND_TRIES", (0.01, 0.02, 0.04))


@pytest.mark.parametrize("method", ["fmcl", "fedavg"])
def test_a_folder_that_was_away_for_a_moment_costs_no_site_its_place(small_config: MakeConfig, method: str) -> None:
    record = Record()
    conduct(Away(6, {1: 1, 4: 3}), small_config(method=method, rounds=1), [record])
    assert len(record.of(SiteEnrolled)) == 6
    assert not any(event.late for event in record.of(SiteEnrolled))
    assert record.of(SiteLeftOut) == []


def test_who_stays_away_is_left_out_and_asked_once_in_every_round(small_config: MakeConfig) -> None:
    record, grid = Record(), Away(6, {2: 6})
    conduct(grid, small_config(method="fedavg", rounds=6), [record])
    left = [event for event in record.of(SiteLeftOut) if event.stage == "enrol"]
    # Four tries at the start, of which one is told; then rounds 2 and 3; it is there in round 4.
    assert [event.round_number for event in left] == [0, 2, 3]
    assert {event.reason for event in left} == {REASON}
    (late,) = [event for event in record.of(SiteEnrolled) if event.late]
    assert late.card.name == "002"
    assert record.of(RoundTrained)[-1].labels.keys() == {f"00{index}" for index in range(6)}


def test_what_will_not_pass_is_not_asked_again(small_config: MakeConfig) -> None:
    record, grid = Record(), Away(6, {2: 1}, passing=False)
    conduct(grid, small_config(method="fedavg", rounds=3), [record])
    asked = [m for m in grid.pushed if m.metadata.dst_node_id == 102 and m.metadata.message_type.startswith("query")]
    assert len(asked) == 1


def test_the_start_is_not_put_off_for_longer_than_it_may_take(small_config: MakeConfig) -> None:
    record, grid = Record(), Away(2, {0: 99, 1: 99})
    with pytest.raises(NoSites, match="2 × its data are not there"):
        conduct(grid, small_config(sites=2, round__start_timeout=0.015), [record])
    # Two tries: the third would be too late.
    assert grid.away[0] == 97
    assert record.of(RunEnded)[0].outcome == "failed"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (PermissionError(errno.EACCES, "no"), True),
        (LedgerUnwritable("its ledger cannot be written"), True),
        (DataAway("gone"), True),
        (NoUsableData("a", ["nothing"], is_empty=True), True),
        (NoUsableData("a", ["x.png is broken"]), False),
        (Declined("policy.rounds = 5"), False),
        (SettingsError("wrong"), False),
        (ValueError("wrong"), False),
    ],
)
def test_what_may_pass(error: Exception, passes: bool) -> None:
    assert is_passing(error, Identity("a", Path("/data"), None, None)) is passes
    # A simulated site has nothing of its own that could come back.
    assert not is_passing(error, Identity("a", None, (0, 2), None))
    assert not is_passing(error, None)


def test_a_folder_that_is_away_and_an_empty_one_may_pass(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = small_config(data__source="folder", data__classes="a,b").for_site()
    own = Identity("a", tmp_path / "data", None, tmp_path / "cache")
    with pytest.raises(DataAway) as away:
        load_site(own, settings)
    assert is_passing(away.value, own)
    (tmp_path / "data").mkdir()
    with pytest.raises(NoUsableData) as empty:
        load_site(own, settings)
    assert is_passing(empty.value, own)
