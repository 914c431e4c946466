"""A real federation as its operator sees it: status, runs, one run in line, Ctrl-C, stop, follow, and who knocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.release import VERSION
from server.history.events import RoundTrained
from tests.support.federation import PATIENCE, ROOT, Federation, ended, events_of, until, write_digits

pytestmark = pytest.mark.federation

CONFIG = """
method = "fedavg"
sites = 1
rounds = 400
[data]
source = "folder"
classes = ["0", "1"]
image_size = 8
channels = 1
[train]
model = "lenet5"
lr = 0.05
[round]
start_timeout = 120.0
"""

SUITE = """
title = "Real sites"
seeds = [0]
data = [{name = "clinics", config = "run.toml", set = {rounds = 1}}]
[[method]]
name = "fedavg"
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    # A shell that starts tests in the background has them ignore Ctrl-C, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    write_digits(tmp_path / "data" / "a", [0, 1])
    with ended(Federation(tmp_path)) as made:
        made.provision(["a", "b"])
        made.start_server()
        made.start_site(made.layout.kit("a"))
        (tmp_path / "run.toml").write_text(CONFIG)
        yield made
    signal.signal(signal.SIGINT, before)


def told(federation: Federation, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command says."""
    line = [sys.executable, "-m", "cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, capture_output=True, text=True, cwd=federation.root, env=environment, check=False)


def compare_methods(federation: Federation, *on: str) -> None:
    """A suite on the sites that are there, each run by the server."""
    (federation.root / "suite.toml").write_text(SUITE)
    compared = told(federation, "bench", "suite.toml", "--out", "bench", *on, "--set", "sites=1")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "| FedAvg | 1 | 1 |" in compared.stdout
    about = json.loads((federation.root / "bench" / "clinics" / "fedavg" / "seed-0" / "run.json").read_text())
    assert about["outcome"] == "finished"


def test_an_operator_sees_and_steers_what_runs(federation: Federation, tmp_path: Path) -> None:
    on = ("--on", str(federation.layout.root))
    refused = told(federation, "run", "run.toml", *on, "--out", "/proc/nope")
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert "cannot be written" in refused.stderr
    assert "no run is under way" in told(federation, "status", *on).stdout

    first = federation.start("first", "run", "run.toml", *on, "--out", "one")
    trained = lambda: events_of(tmp_path / "one", RoundTrained)  # noqa: E731
    until(lambda: trained() or first.process.poll() is not None, PATIENCE, "a round")
    assert trained(), first.text
    status = told(federation, "status", *on).stdout
    assert "sites: 1 of 2 connected" in status
    assert "b     not connected  never seen" in status
    assert f"{VERSION}    agrees" in status, "version and clock of the site that is there"
    assert "fedavg, running since" in status
    assert "of 400 is trained" in status
    kit = str(federation.layout.kit("a") / "site.toml")
    assert "knows the key of this site" in told(federation, "doctor", kit).stdout

    again = told(federation, "run", "run.toml", *on, "--out", "one", "--resume", "--set", "rounds=3")
    assert again.returncode == 2
    assert "rounds = 3 (was 400); resume it with the same ones" in again.stderr
    assert again.stderr.count("\n") == 1, "no traceback, and no advice to do it again"

    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(60) == 130
    assert "goes on at the server. `coterie follow " in first.text

    second = federation.start("second", "run", "run.toml", *on, "--out", "two", "--queue", "--set", "rounds=1")
    until(lambda: "waits for its turn: 1 before it" in second.text, PATIENCE, "the second stands in line")
    assert "is running on this server" in second.text, "it is told of the other"
    assert told(federation, "stop", "one", *on).returncode == 0
    assert second.process.wait(PATIENCE) == 0
    assert json.loads((tmp_path / "one" / "run.json").read_text())["outcome"] == "interrupted"
    listed = told(federation, "runs", *on).stdout
    assert "stopped" in listed
    assert "finished" in listed
    assert told(federation, "follow", "two", *on).returncode == 0
    assert told(federation, "stop", *on).returncode == 1, "nothing is left to end"

    compare_methods(federation, *on)

    site = federation.started["a"].text
    assert "\x1b[" not in site
    assert site.count("INFO") == site.count("SuperNode ID:") == 1, "Flower's own lines are for --verbose"
    stranger = federation.layout.public_key("b")
    told(federation, "provision", str(federation.layout.root), "--remove", "b")
    until(lambda: not stranger.exists(), 30, "b is out")
    write_digits(tmp_path / "data" / "b", [0, 1])
    unknown = told(federation, "site", "check", str(federation.prepare_site(federation.layout.kit("b"))), "--call")
    assert unknown.returncode == 1
    assert "does not know the key of this site" in unknown.stdout
