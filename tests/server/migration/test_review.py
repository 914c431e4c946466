"""Drift and migration in whole runs: who is asked, who moves, what is written down."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from cli.main import main as coterie
from common import wire
from common.config import Config, SettingsError
from server.history.event_log import read_events
from server.history.events import (
    GroupRetired,
    RoundFinished,
    RunEnded,
    SiteCleared,
    SiteLeftOut,
    SiteRenewed,
    SitesMoved,
)
from server.migration import Evidence, GuardedRule, Verdict
from server.migration.review import Migration
from server.strategy import ClusteredStrategy
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, altered, on, run, run_to_disk, update_in

DRIFT = 7
SWAP = f'[{{"kind": "swap", "at": {DRIFT}, "sites": ["000", "001"]}}]'


@pytest.fixture
def drifting(small_config: MakeConfig) -> MakeConfig:
    """Two kinds of digits, four sites each; 000 and 001 exchange their data before round 7."""

    def make(**overrides: object) -> Config:
        settings = {
            "sites": 8, "rounds": 10, "partition__scheme": "disjoint", "partition__groups": 2, "cluster__k": 2,
            "migration__rule": "guarded", "drift": SWAP, "train__model": "mlp", "train__batch_size": 8,
        }  # fmt: skip
        return small_config(**(settings | overrides))

    return make


def signature_queries(grid: LoopbackGrid) -> list[int]:
    """The sites that were asked for a signature after everybody had been asked once."""
    nodes = [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "query.signature"]
    return [node - 100 for node in nodes[8:]]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_drifted_sites_change_places_and_only_they_are_asked_again(drifting: MakeConfig, seed: int) -> None:
    record, grid = run(drifting(seed=seed))
    moves = record.of(SitesMoved)
    homes = record.of(RoundFinished)[0].labels
    assert [(move.sites[0], move.origin, move.target) for move in moves] == [
        ("000", homes["000"], homes["001"]),
        ("001", homes["001"], homes["000"]),
    ]
    # They say so themselves, in the first round with changed data.
    assert all(move.round_number == DRIFT for move in moves)
    assert all(move.evidence.changed > 4 for move in moves)
    assert signature_queries(grid) == [0, 1]
    evidence = moves[0].evidence
    assert evidence.distances[moves[0].target] < evidence.distances[moves[0].origin]


@pytest.mark.parametrize("seed", [0, 1])
def test_where_sites_do_not_watch_themselves_their_updates_give_them_away(drifting: MakeConfig, seed: int) -> None:
    record, grid = run(drifting(seed=seed, migration__look=0))
    moves = record.of(SitesMoved)
    assert [move.sites[0] for move in moves] == ["000", "001"]
    assert all(DRIFT < move.round_number < DRIFT + 3 for move in moves)
    assert signature_queries(grid) == [0, 1]
    evidence = moves[0].evidence
    assert evidence.changed is None
    assert evidence.norm > 3 * evidence.usual_norm


@pytest.mark.parametrize("prior", ["site", "off"])
def test_a_gradual_drift_is_found_and_rests_grow(drifting: MakeConfig, prior: str) -> None:
    gradual = SWAP.replace("}", ', "over": 10}')
    record, grid = run(drifting(rounds=20, drift=gradual, train__prior=prior, encoder__name="pixels"))
    homes, last = (record.of(RoundFinished)[row].labels for row in (0, -1))
    assert last == homes | {"000": homes["001"], "001": homes["000"]}
    assert set(signature_queries(grid)) == {0, 1}
    examined = [event.round_number for event in record.events if _is_about(event, "000")]
    gaps = np.diff(examined)
    assert all(later >= earlier for earlier, later in itertools.pairwise(gaps))
    assert len(examined) <= 4


def _is_about(event: object, site: str) -> bool:
    return (isinstance(event, SiteCleared) and event.site == site) or (
        isinstance(event, SitesMoved) and site in event.sites
    )


def test_a_stranger_founds_a_group_and_the_next_of_its_kind_joins_it(drifting: MakeConfig) -> None:
    strangers = '[{"kind": "invert", "at": 5, "sites": ["000"]}, {"kind": "invert", "at": 8, "sites": ["002"]}]'
    record, _ = run(drifting(drift=strangers, encoder__name="pixels", partition__scheme="iid", cluster__k=1))
    assert [(move.sites[0], move.origin, move.target, move.founded) for move in record.of(SitesMoved)] == [
        ("000", 0, 1, True), ("002", 0, 1, False),
    ]  # fmt: skip


def test_without_drift_nobody_is_asked_again(drifting: MakeConfig) -> None:
    record, grid = run(drifting(drift=""))
    assert signature_queries(grid) == []
    assert not record.of(SitesMoved)
    assert not record.of(SiteCleared)


def test_without_migration_nobody_moves(drifting: MakeConfig) -> None:
    record, grid = run(drifting(migration__rule="auto"))
    assert signature_queries(grid) == []
    assert not record.of(SitesMoved)


def test_fedcm_moves_by_direction_and_asks_nobody(drifting: MakeConfig) -> None:
    record, grid = run(drifting(method="fedcm", cluster__k=0, migration__rule="auto"))
    queries = [message for message in grid.pushed if message.metadata.message_type.startswith("query.")]
    assert len(queries) == 8
    assert {move.sites[0] for move in record.of(SitesMoved)} == {"000", "001"}
    assert all(move.evidence.distances == {} for move in record.of(SitesMoved))


def test_the_published_rule_runs_to_the_end_whatever_it_does(drifting: MakeConfig) -> None:
    record, _ = run(drifting(migration__rule="fedcm"))
    assert record.of(RunEnded)[0].outcome == "finished"
    assert record.of(SitesMoved)


def test_same_seed_same_bits_in_any_order_of_replies(drifting: MakeConfig, tmp_path: Path) -> None:
    first = run_to_disk(drifting(), tmp_path / "a")
    second = run_to_disk(drifting(), tmp_path / "b", order_seed=3)
    assert (first / "metrics.csv").read_bytes() == (second / "metrics.csv").read_bytes()
    moves = [json.loads((path / "summary.json").read_text())["moves"] for path in (first, second)]
    assert moves[0] == moves[1] != []


def suspect_answers(change: Callable[[Message, Message], Message | None], *, first: int) -> Callable:
    """Apply `change` to site 0's answers from its `first`-th signature on (the one of the enrolment is number 0)."""
    seen = []

    def apply(request: Message, reply: Message) -> Message | None:
        seen.append(request)
        return change(request, reply) if len(seen) > first else reply

    return on("query", 0, apply)


def test_a_suspect_that_does_not_answer_stays_and_is_asked_again(drifting: MakeConfig) -> None:
    lost_once = iter([True])
    fault = suspect_answers(lambda _, reply: None if next(lost_once, False) else reply, first=1)
    record, grid = run(drifting(round__deadline=1.0), fault=fault)
    assert record.reasons["confirm", "000"] == "no reply within 1 s (round.deadline)"
    moves = {move.sites[0]: move.round_number for move in record.of(SitesMoved)}
    assert moves["000"] == moves["001"] + 1
    assert signature_queries(grid) == [0, 1, 0]


def test_a_suspect_whose_answers_are_useless_is_named_and_in_the_end_judged_by_its_updates(
    drifting: MakeConfig,
) -> None:
    def poisoned(request: Message, reply: Message) -> Message:
        prototypes = np.full((1, 4), np.nan, np.float32)
        reply.content["signature"] = wire.pack_arrays(
            {"classes": np.array([0]), "prototypes": prototypes, "shares": np.ones(1), "scatter": np.zeros(1)}
        )
        return reply

    record, grid = run(drifting(), fault=suspect_answers(poisoned, first=1))
    failures = [event for event in record.of(SiteLeftOut) if event.stage == "confirm"]
    assert [(event.site, event.round_number) for event in failures] == [("000", 7), ("000", 8), ("000", 9)]
    assert all("finite" in event.reason for event in failures)
    last = record.of(SitesMoved)[-1]
    assert (last.sites, last.round_number, last.evidence.distances) == (("000",), 9, {})
    assert signature_queries(grid) == [0, 1, 0, 0]


def test_a_suspect_that_never_answers_is_not_asked_for_ever(
    drifting: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedRule, "by_direction", lambda self, suspect: None)
    lost = suspect_answers(lambda request, reply: None, first=1)
    _, grid = run(drifting(rounds=14, round__deadline=0.2), fault=lost)
    assert signature_queries(grid).count(0) == 3


def test_a_suspect_under_another_name_is_not_believed(drifting: MakeConfig) -> None:
    def renamed(request: Message, reply: Message) -> Message:
        reply.content["site"]["name"] = "007"
        return reply

    record, _ = run(drifting(), fault=suspect_answers(renamed, first=1))
    assert record.reasons["confirm", "000"] == "calls itself '007' now"


def test_a_false_alarm_is_cleared_by_the_signature(drifting: MakeConfig, tmp_path: Path) -> None:
    def shouting(request: Message, reply: Message) -> Message:
        # From round 4 on site 0 sends the opposite of what it learnt, four times as large: an outlier with good data.
        if wire.unpack_task(request.content).round_number < 4:
            return reply
        sent, update = wire.unpack_model(request.content), update_in(reply)
        state = {
            name: (sent[name] - 4 * (array - sent[name])).astype(array.dtype) for name, array in update.state.items()
        }
        return altered(reply, replace(update, state=state))

    config = drifting(drift="", train__lr=0.01)
    record, grid = run(config, fault=on("train", 0, shouting))
    assert not record.of(SitesMoved)
    cleared = record.of(SiteCleared)
    assert {event.site for event in cleared} == {"000"}
    # Once in a while: after an acquittal it is left in peace.
    assert [event.round_number for event in cleared] == [5, 10]
    assert signature_queries(grid) == [0, 0]


def given_verdicts(monkeypatch: pytest.MonkeyPatch, verdicts: dict[int, list[Verdict]]) -> None:
    monkeypatch.setattr(
        Migration, "_verdicts", lambda self, round_number, suspects: iter(verdicts.get(round_number, []))
    )
    monkeypatch.setattr(Migration, "settle", lambda self, move, group, round_number: None)


EVIDENCE = Evidence(-0.5, {}, 1.0)


def test_founding_and_retiring_groups(drifting: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given_verdicts(
        monkeypatch,
        {
            2: [Verdict("002", 0, None, EVIDENCE), Verdict("003", 1, None, EVIDENCE)],
            4: [Verdict("002", 2, 0, EVIDENCE)],
            5: [Verdict("004", 0, None, EVIDENCE)],
        },
    )
    config = drifting(rounds=6, drift="")
    record, _ = run(config)
    assert [(move.sites[0], move.target, move.founded) for move in record.of(SitesMoved)] == [
        ("002", 2, True), ("003", 3, True), ("002", 0, False), ("004", 4, True),
    ]  # fmt: skip
    assert record.of(GroupRetired) == [GroupRetired(4, 2)]
    by_round = {event.round_number: event for event in record.of(RoundFinished)}
    assert set(by_round[2].models) == {0, 1, 2, 3}
    assert set(by_round[6].models) == {0, 1, 3, 4}
    assert by_round[6].labels["004"] == 4
    # A founder starts from the model it had: in the round of the founding both are the same.
    np.testing.assert_array_equal(by_round[2].models[2]["head.bias"], by_round[2].models[0]["head.bias"])
    assert not np.array_equal(by_round[3].models[2]["head.bias"], by_round[3].models[0]["head.bias"])


def test_nothing_is_remembered_of_a_retired_group(drifting: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    given_verdicts(monkeypatch, {1: [Verdict("002", 0, None, EVIDENCE)], 3: [Verdict("002", 2, 0, EVIDENCE)]})
    states: dict[int, dict[str, set[str]]] = {}
    aggregate_train = ClusteredStrategy.aggregate_train

    def spy(self: ClusteredStrategy, server_round: int, replies: Iterable[Message]) -> object:
        found = aggregate_train(self, server_round, replies)
        states[server_round] = {part: set(self.state()[part]) for part in ("rule", "aggregation")}
        return found

    monkeypatch.setattr(ClusteredStrategy, "aggregate_train", spy)
    config = drifting(rounds=3, drift="", train__rule="fedadam", aggregate__rule="clipped")
    record, _ = run(config)
    assert record.of(GroupRetired) == [GroupRetired(3, 2)]
    assert states[2] == {"rule": {"0", "1", "2"}, "aggregation": {"0", "1", "2"}}
    assert states[3] == {"rule": {"0", "1"}, "aggregation": {"0", "1"}}


def test_the_ledger_is_in_every_file_and_printed(
    drifting: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = run_to_disk(drifting(), tmp_path / "run")
    capsys.readouterr()
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    moved = read_events(path).of(SitesMoved)
    assert [(move["site"],) for move in summary["moves"]] == [event.sites for event in moved] == [("000",), ("001",)]
    for move, event in zip(summary["moves"], moved, strict=True):
        assert list(move) == [
            "round", "site", "from", "to", "founded", "cosine", "cosines", "norm", "peer_norm", "usual_norm",
            "distances", "changed",
        ]  # fmt: skip
        assert (move["round"], move["from"], move["to"]) == (event.round_number, event.origin, event.target)
        assert move["cosine"] == event.evidence.cosine
        assert set(move["distances"]) == {"0", "1"}
    with (path / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["scope"] == "site" and row["name"] == "000"]
    assert rows[0]["group"] != rows[-1]["group"] == str(summary["labels"]["000"])
    assert coterie(["moves", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "a line per move, none of them wrapped"
    assert coterie(["moves", str(path), "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["event"], entry["site"]) for entry in entries] == [("SiteMoved", "000"), ("SiteMoved", "001")]
    assert "reason" not in entries[0]["evidence"]


def test_moves_of_a_quiet_run_of_a_torn_log_and_of_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "RunStarted"}\n{"event": "SiteMo', encoding="utf-8")
    assert coterie(["moves", str(tmp_path)]) == 0
    assert "No site was moved" in capsys.readouterr().out
    assert coterie(["moves", str(tmp_path / "nowhere")]) == 2
    assert "RUN is the directory of a run" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_migration_needs_groups_to_move_between(drifting: MakeConfig, method: str) -> None:
    with pytest.raises(SettingsError, match="no groups to move between"):
        run(drifting(method=method))
    record, _ = run(drifting(method=method, migration__rule="auto", rounds=7))
    assert record.of(RunEnded)[0].outcome == "finished"


def test_a_site_whose_data_outgrow_its_card_introduces_itself_again(drifting: MakeConfig) -> None:
    claimed: list[int] = []

    def grown(request: Message, reply: Message) -> Message:
        update = update_in(reply)
        if claimed:
            return reply
        claimed.append(update.samples * 100)
        return altered(reply, replace(update, samples=claimed[0]))

    record, grid = run(drifting(rounds=7, migration__look=0), fault=on("train", 2, grown))
    assert f"claims {claimed[0]} training samples" in record.reasons["train", "002"]
    assert signature_queries(grid)[0] == 2
    assert [event.card.name for event in record.of(SiteRenewed)] == ["002"]
    assert len([event for event in record.of(SiteLeftOut) if event.site == "002"]) == 1
