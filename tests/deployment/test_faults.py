"""What goes wrong in a deployment: the right ones are named, the run ends, and no finished round is lost."""

from __future__ import annotations

import csv
import json

import pytest

from server.history.events import ReplyAccepted
from tests.support.faults import ROUNDS, WRONG_ANSWERS, Stage, stage_faults

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """After the whole run; it takes some minutes, most of them waiting for Flower to miss who is gone."""
    return stage_faults(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(
    ("fault", "named", "said"),
    [
        (WRONG_ANSWERS["raise"], "a", "told to raise"),
        (WRONG_ANSWERS["die"], "c", "killed by SIGABRT"),
        (WRONG_ANSWERS["nan"], "b", "not finite"),
        (WRONG_ANSWERS["shape"], "d", "not float32"),
        (WRONG_ANSWERS["oversized"], "a", "at most 1 MB are allowed"),
        (WRONG_ANSWERS["truncated"], "c", "truncated or not readable"),
        (WRONG_ANSWERS["version"], "b", "update the older side"),
        ("a site is slower than the deadline (20 s)", "d", "no reply within 20 s"),
        ("an unregistered key calls", "SHA256:", "nobody here has its key"),
        ("a site joins late", "late", "confidence"),
        ("a site is killed in mid-round", "a", "error 5"),
        ("… and is started again at once", "a", "takes part again"),
        ("the SuperLink is killed", "server", "round 11 is finished"),
        ("the ServerApp is killed", "run", "--resume"),
        ("… and the run is resumed", "run", "goes on after round 11"),
        ("a site leaves for good", "d", ""),
    ],
)
def test_who_is_named_and_why(stage: Stage, fault: str, named: str, said: str) -> None:
    outcome = stage.outcomes[fault]
    assert named in outcome.named
    assert said in outcome.said


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(stage: Stage) -> None:
    if stage.disk is None:
        pytest.skip("this user may not mount a disk to fill")
    assert "No space left" in stage.outcomes["the disk is full at a checkpoint"].said


def test_the_run_ends_and_no_finished_round_is_lost(stage: Stage) -> None:
    assert stage.run.process.returncode == 0
    assert json.loads((stage.out / "run.json").read_text())["outcome"] == "finished"
    with (stage.out / "metrics.csv").open(newline="") as file:
        rounds = [int(row["round"]) for row in csv.DictReader(file) if row["scope"] == "overall"]
    assert rounds == list(range(1, ROUNDS + 1))
    assert (stage.out / "report.html").exists()


def test_who_is_there_at_the_end_has_the_final_model(stage: Stage) -> None:
    kits = stage.federation.layout.root / "sites"
    for site in ("a", "b", "c", "late"):
        cards = [json.loads(path.read_text()) for path in kits.glob(f"{site}/models/run-*/model.json")]
        assert ROUNDS in [card["round"] for card in cards], site


def test_only_who_was_at_fault_is_missing(stage: Stage) -> None:
    everybody = {"a", "b", "c", "d"}
    missing = {1: {"a", "c"}, 2: {"b", "d"}, 3: {"a", "c"}, 4: {"b"}, 8: {"a"}}
    for round_number, absent in missing.items():
        replies = stage.events(ReplyAccepted, stage="train", round_number=round_number)
        assert {entry.event.site for entry in replies} - {"late"} == everybody - absent, round_number
    replies = stage.events(ReplyAccepted, stage="train", round_number=ROUNDS)
    assert {entry.event.site for entry in replies} == {"a", "b", "c", "late"}


def test_a_late_site_is_placed_with_its_likes(stage: Stage) -> None:
    labels = json.loads((stage.out / "summary.json").read_text())["labels"]
    assert labels["late"] == labels["c"] != labels["a"]
