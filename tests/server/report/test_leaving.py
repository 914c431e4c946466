"""The page's section on what left each site, with a site's ledger beside what arrived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.invented import Plot, write_run
from cli.main import main
from client.policy.ledger import Entry, Ledger
from common.fingerprint import KINDS
from server.history.run_directory import RUN
from server.report import page, read_run
from server.report.course_figures import STAGES
from server.report.leaving_section import _TOLD, FINGERPRINTS
from tests.server.report.test_report import words_of


def test_every_stage_and_fingerprint_has_words() -> None:
    assert FINGERPRINTS.keys() == KINDS.keys()
    assert {*_TOLD, "enrol"} == STAGES.keys()


def test_a_ledger_stands_beside_what_arrived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", Plot())
    about = json.loads((run / RUN).read_text(encoding="utf-8"))
    (run / RUN).write_text(json.dumps(about | {"stamp": "94992a2055738d2c"}), encoding="utf-8")
    record = read_run(run)
    site = sorted(record.traffic)[0]
    assert "What left each site" in words_of(page([record]))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for what, stamp, size in (
        ("sent", "94992a2055738d2c", 1_000_000), ("sent", "94992a2055738d2c", 500_000), ("sent", "another", 9),
        ("declined", "94992a2055738d2c", 0),
    ):  # fmt: skip
        ledger.note(Entry.model_validate({"at": 1.0, "what": what, "stamp": stamp, "bytes": size}))
    command = ["report", str(run), "--ledger", f"{site}={ledger.path}"]
    assert main(command) == 0
    text = " ".join(words_of((run / "report.html").read_text(encoding="utf-8")).split())
    assert "2 1.5 MB 1" in text, "two answers of this run, and one question declined"
    assert ledger.head()[:16] in text
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[1:]))
    assert main(command) == 2
    assert "one is missing" in capsys.readouterr().err
    assert main(["report", str(run), "--ledger", str(ledger.path)]) == 2
    assert "SITE=FILE" in capsys.readouterr().err
