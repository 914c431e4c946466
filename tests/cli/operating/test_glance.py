"""What an operator sees at a glance: runs, findings, and whose turn it is. Without a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.commands.status import _sites
from cli.deployment.federation import named
from cli.deployment.start_file import ServerFile, SiteFile, read_start_file
from cli.deployment.supervisor import is_information, plain
from cli.main import main
from cli.operating import findings
from cli.operating.columns import ago, columns
from cli.operating.doctor import look_at_server, look_at_site
from cli.operating.local_runs import local_runs
from common.config import SettingsError
from common.lock import alone
from server.flower.control import KnownRun, KnownSite
from server.flower.sightings import Sighting
from server.flower.turns import told_to_end, turn


def run_directory(path: Path, outcome: str, **summary: object) -> Path:
    path.mkdir(parents=True)
    about = {"config": {"method": "fmcl", "rounds": 4}, "outcome": outcome, "started": "2026-11-18T20:00:00+0000"}
    (path / "run.json").write_text(json.dumps(about))
    if summary:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_runs_are_listed_with_how_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(tmp_path / "a", "finished", rounds=4, final={"accuracy": 0.5})
    (run_directory(tmp_path / "deep" / "b", "running") / "checkpoint").mkdir()
    run_directory(tmp_path / "c", "running")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text("{")
    with alone(tmp_path / "c" / ".lock", "c"):
        states = {run.directory.name: run.state for run in local_runs(tmp_path)}
        assert states == {"a": "finished", "b": "cut off", "c": "running"}
        assert main(["runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "4/4     0.500" in told
    assert "--resume --out" in told


RUNS = [
    KnownRun(1234, "running", "2026-11-18T20:00:00+00:00", "", "", {"out": "/runs/two"}),
    KnownRun(1034, "finished", "2026-11-18T19:00:00+00:00", "", "", {"out": "/runs/one"}),
    KnownRun(77, "failed", "2026-11-18T18:00:00+00:00", "", "", {"out": "/runs/one"}),
]


def test_a_run_is_named_by_number_directory_or_last() -> None:
    for wanted, number in (("last", 1234), ("1034", 1034), ("234", 1234), ("one", 1034), ("/runs/two", 1234)):
        assert named(RUNS, wanted).number == number
    for wanted in ("34", "three", "5"):
        with pytest.raises(SettingsError, match="coterie runs"):
            named(RUNS, wanted)
    with pytest.raises(SettingsError, match="no run yet"):
        named([], "last")


def test_columns_and_times() -> None:
    assert columns(("a", "b"), [("long", "x")]) == "a     b\nlong  x"
    now = datetime(2026, 11, 18, 20, 0, tzinfo=UTC)
    assert ago("2026-11-18T19:58:20+00:00", now) == "1 min 40 s"
    assert ago("", now) == "–"


def test_a_status_names_versions_clocks_and_who_is_away() -> None:
    sites = [
        KnownSite(1, False, "north", True, "2026-11-18T19:58:20+00:00"),
        KnownSite(2, False, "south", False, "2026-11-18T19:00:00+00:00", "2026-11-18T19:30:00+00:00"),
        KnownSite(3, False, "west"),
    ]
    seen = {1: Sighting("0.2.0", 0.4, 1e9), 2: Sighting("0.1.0", -40.0, 1e9)}
    head, names, *lines = _sites(sites, [KnownSite(4, True, "east")], seen).splitlines()
    assert head == "sites: 1 of 3 connected; shut out: east"
    assert names.split() == ["site", "state", "Coterie", "clock"]
    assert [line.split("  ")[0].strip() for line in lines] == ["north", "south", "west"]
    assert lines[0].endswith("0.2.0    agrees")
    assert lines[1].endswith("0.1.0    40.0 s behind the server's")
    assert lines[2].split()[1:] == ["not", "connected", "never", "seen", "–", "–"]


def test_a_log_is_plain_and_of_flower_only_what_matters() -> None:
    assert plain("\x1b[93mWARNING \x1b[0m: x\n") == "WARNING : x\n"
    assert is_information("\x1b[92mINFO \x1b[0m:      Received successfully\n")
    assert is_information("\n")
    assert not is_information("\x1b[93mWARNING \x1b[0m:   Connection attempt failed\n")
    assert not is_information("coterie: taking part\n")


def test_runs_take_turns_in_the_order_they_came(tmp_path: Path) -> None:
    order: list[str] = []
    first_began, first_may_end = threading.Event(), threading.Event()
    told: list[int] = []

    def run(name: str, *, waits: bool) -> None:
        with turn(tmp_path, waits=waits, tell=told.append):
            order.append(f"{name} begins")
            if name == "first":
                first_began.set()
                first_may_end.wait(20)
            order.append(f"{name} ends")

    first = threading.Thread(target=run, args=("first",), kwargs={"waits": False})
    first.start()
    assert first_began.wait(10)
    second = threading.Thread(target=run, args=("second",), kwargs={"waits": True})
    second.start()
    deadline = time.monotonic() + 10
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == [1]
    run("third", waits=False)
    first_may_end.set()
    first.join(20)
    second.join(20)
    assert order.index("second begins") > order.index("first ends")
    assert order.index("third begins") < order.index("first ends"), "who does not ask for it does not wait"
    # A run that was killed holds nobody up.
    (tmp_path / "00000000000000000001-1").touch()
    run("fourth", waits=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_is_asked_first(number: signal.Signals) -> None:
    stop, before = threading.Event(), signal.getsignal(number)
    with told_to_end(stop):
        signal.raise_signal(number)
        assert stop.wait(10)
        # Told again at once it goes on ending in good order.
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_signal_may_come_at_any_moment() -> None:
    """Also while the main thread has the lock of the event that it is about to wait for."""
    code = "import signal, threading; from server.flower.turns import told_to_end; stop = threading.Event()\n"
    code += "with told_to_end(stop):\n    with stop._cond: signal.raise_signal(signal.SIGTERM)\n"
    code += "    assert stop.wait(10)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_doctor_names_what_is_wrong_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128")
    provision = ["provision", str(tmp_path / "fed"), "--server", "127.0.0.1:1", "--sites", "a"]
    assert main([*provision, "--control", "127.0.0.1:2"]) == 0
    kit = tmp_path / "fed" / "sites" / "a" / "site.toml"
    found = list(look_at_site(kit, read_start_file(kit, SiteFile)))
    told = "\n".join(map(str, found))
    assert "PROBLEM 127.0.0.1:1 does not answer: Connection refused" in told
    assert "firewall" in told
    assert "data is empty" in told
    assert "http://proxy:3128" in told
    assert "secret" not in told
    assert main(["doctor", str(kit)]) == 1
    server = tmp_path / "fed" / "server" / "server.toml"
    found = list(look_at_server(server, read_start_file(server, ServerFile)))
    assert not [one for one in found if one.state == "PROBLEM"]
    (tmp_path / "fed" / "server" / "server.key").unlink()
    (tmp_path / "fed" / "server" / "keys" / "a.pub").unlink()
    problems = [str(one) for one in look_at_server(server, read_start_file(server, ServerFile)) if one.do or one.what]
    told = "\n".join(problems)
    assert "PROBLEM" in told
    assert "no site may take part yet" in told
    monkeypatch.setattr(findings, "_LITTLE_DISK", 1e30)
    assert [one for one in findings.disk([tmp_path]) if one.state == "PROBLEM" and "free" in one.what]


def test_the_doctor_says_why_no_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "has no CUDA" in findings.gpu().what
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides every GPU" in findings.gpu().what
