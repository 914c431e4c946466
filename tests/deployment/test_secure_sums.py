"""Secure sums in a real federation: TLS, site keys, real processes; a site is killed in the middle of its training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.history.events import Event, GroupKept, ReplyAccepted, RoundTrained, RunEnded, SiteLeftOut
from tests.support.federation import (
    PATIENCE,
    Federation,
    changed_project,
    ended,
    events_of,
    until,
    write_digits,
)

pytestmark = pytest.mark.federation

SITES = "abce"
LONG = 300.0
CONFIG = """
method = "fedavg"
sites = 4
rounds = 3
[aggregate]
rule = "secure"
[data]
source = "folder"
classes = ["0", "1", "2"]
image_size = 8
channels = 1
[train]
model = "lenet5"
[round]
start_timeout = 120.0
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("sums")
    for number, site in enumerate(SITES):
        write_digits(root / "data" / site, (0, 1, 2), first=20 * number)
    orders = root / "orders"
    orders.mkdir()
    allow(orders, 1)
    (root / "run.toml").write_text(CONFIG)
    addition = "\nfrom client import misbehaviour\n\nreply = misbehaviour.around(reply)\n"
    project = changed_project(root / "project", "misbehaviour", addition)
    with ended(Federation(root, project, {"MISBEHAVIOUR": str(orders)})) as made:
        made.provision(list(SITES))
        for site in SITES:
            with (made.layout.kit(site) / "site.toml").open("a") as file:
                file.write('\n[policy]\naggregation = "secure"\n')
        made.start_server()
        for site in SITES:
            made.start_site(made.layout.kit(site))
        run = made.start_run(root / "run.toml", root / "out")
        waits = orders / "e.waits"
        until(lambda: waits.exists() and waits.read_text() == "2", LONG, "site e trains in round 2")
        made.started["e"].kill()
        calls = made.started["e"].text.count("SuperNode ID:")
        again = made.start_site(made.layout.kit("e"))
        # Who is to be in round 3 is there before round 2 ends: a sum begins with those who are there.
        until(lambda: again.text.count("SuperNode ID:") > calls, PATIENCE, "the site gets in again")
        allow(orders, 3)
        until(lambda: run.process.poll() is not None, LONG, "the run ends")
        assert run.process.returncode == 0, run.text[-3000:]
        yield made


def allow(orders: Path, round_number: int) -> None:
    """Let the sites get on with the training of a round; never half-written, as they read it all the time."""
    order = orders / ".limit"
    order.write_text(str(round_number))
    order.replace(orders / "limit")


def of(made: Federation, kind: type[Event], **match: object) -> list[Event]:
    return [entry.event for entry in events_of(made.root / "out", kind, **match)]


def test_every_round_has_a_sum_and_who_was_killed_alone_is_missing(federation: Federation) -> None:
    assert of(federation, RunEnded, outcome="finished")
    assert [event.round_number for event in of(federation, RoundTrained)] == [1, 2, 3]  # type: ignore[attr-defined]
    assert not of(federation, GroupKept)
    left = [(event.stage, event.site) for event in of(federation, SiteLeftOut, round_number=2)]  # type: ignore[attr-defined]
    assert left == [("train", "e")]
    # The three others, as few as can, opened the sum without it.
    opened = [event.site for event in of(federation, ReplyAccepted, stage="open", round_number=2)]  # type: ignore[attr-defined]
    assert sorted(opened) == sorted(2 * "abc")


def test_nothing_secret_stays_at_a_site(federation: Federation) -> None:
    for site in "abc":
        (path,) = (federation.layout.kit(site) / "memory").rglob("secure-sum.json")
        kept = json.loads(path.read_text())
        assert kept["session"] is None
        assert sorted(kept["opened"]) == ["1", "2", "3"]
        # Of different rounds, with and without e.
        assert kept["opened"]["1"] != kept["opened"]["2"]


def test_the_ledger_has_every_message_of_a_sum(federation: Federation) -> None:
    lines = (federation.layout.kit("a") / "ledger.jsonl").read_text().splitlines()
    asked = [entry["kind"] for entry in map(json.loads, lines) if entry["what"] == "asked"]
    for kind in ("query.keys", "query.shares", "train", "query.sign", "query.open"):
        assert asked.count(kind) == 3, kind
    assert not [entry for entry in map(json.loads, lines) if entry["what"] == "declined"]
