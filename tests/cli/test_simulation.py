"""The real engine, the real command: processes, Ray, signals. Slower than the rest, so few."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.simulation import choice, engine
from tests.support.runs import MakeConfig

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "digits.toml"
SETTINGS = {
    "sites": 5,
    "rounds": 2,
    "data.image_size": 8,
    "data.channels": 1,
    "encoder.name": "random:resnet10t",
    "encoder.image_size": 32,
    "train.model": "lenet5",
    "train.lr": 0.1,
}
PATIENCE = 180


def environment(home: Path, mark: str = "") -> dict[str, str]:
    """An empty home; `mark` can be found again in the environment of every process that is started from here."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "FLWR_"))}
    flower = {
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    return keep | flower | {"HOME": str(home), "COTERIE_TEST_MARK": mark}


def settings(**changes: object) -> dict[str, object]:
    return SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}


def command(out: Path, **changes: object) -> list[str]:
    pairs = [f"--set={key}={value}" for key, value in settings(**changes).items()]
    return [sys.executable, "-m", "cli.main", "simulate", str(CONFIG), "--jobs", "2", "--out", str(out), *pairs]


def simulate(home: Path, out: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(out, **changes),
        check=False,
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def summary(out: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return value


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home: Path) -> Path:
    """One simulated run that several tests look at."""
    out = home / "first"
    done = simulate(home, out)
    assert done.returncode == 0, done.stderr + done.stdout
    return out


@pytest.mark.federation
def test_a_run_directory_is_complete(first: Path) -> None:
    files = {path.name for path in first.iterdir()}
    assert files == {
        "run.json", "events.jsonl", "clusters.json", "confusions.json", "scores.json", "distances.npy", "metrics.csv",
        "models", "summary.json", "checkpoint", "report.html", ".lock",
    }  # fmt: skip
    value = summary(first)
    assert (value["method"], value["rounds"], value["outcome"]) == ("fmcl", 2, "finished")
    assert set(value["labels"]) == {"000", "001", "002", "003", "004"}
    assert {path.name for path in (first / "models").iterdir()} == {
        f"group-{group}.safetensors" for group in range(value["k"])
    }
    run = json.loads((first / "run.json").read_text())
    assert run["versions"]["flwr"] == "1.39.0"
    for line in (first / "events.jsonl").read_text().splitlines():
        assert "event" in json.loads(line)


@pytest.mark.federation
def test_the_same_command_gives_the_same_bits(first: Path, home: Path) -> None:
    out = home / "again"
    assert simulate(home, out).returncode == 0
    assert (out / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()


@pytest.mark.federation
def test_one_site_at_a_time_needs_no_engine_and_gives_the_same_bits(first: Path, home: Path) -> None:
    out = home / "one"
    line = [*command(out), "--jobs", "1"]
    done = subprocess.run(
        line, check=False, cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()


@pytest.mark.federation
def test_a_run_is_never_overwritten(first: Path, home: Path) -> None:
    done = simulate(home, first)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_mistakes_are_refused_before_anything_starts(home: Path) -> None:
    done = simulate(home, home / "never", train__lrr=1)
    assert done.returncode == 2
    assert "did you mean train.lr?" in done.stderr
    assert not (home / "never").exists()


def test_heads_need_no_engine_and_that_is_said(
    small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the engine was started")

    monkeypatch.setattr(engine, "run_engine", never)
    config = small_config(
        method="fedavg", train__model="head", train__lr=0.01, encoder__name="pixels", encoder__image_size=8,
        out=str(tmp_path / "run"), rounds=1,
    )  # fmt: skip
    assert engine.simulate(config) == "finished"
    assert "one site at a time in this process: done sooner than on Flower's engine" in capsys.readouterr().err
    assert choice.choice_line(config, 2, alone=False) == "on Flower's engine, 2 sites at a time"


@pytest.fixture
def superlink_cleanup(home: Path) -> Iterator[str]:
    """`flwr run` leaves a local SuperLink behind; it and its children are ours to end."""
    mark = f"flwr-{os.getpid()}"
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.federation
def test_flwr_run_gives_the_same_summary(first: Path, home: Path, superlink_cleanup: str) -> None:
    out = home / "flwr-run"
    # Flower knows nothing of configs/digits.toml: what that file sets beyond the defaults is said here.
    values = settings(out=str(out), train__batch_size=16)
    config = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in values.items()
    )
    flwr = Path(sys.executable).with_name("flwr")
    line = [str(flwr), "run", ".", "--stream", "--run-config", config]
    line += ["--federation-config", "num-supernodes=5 client-resources-num-cpus=1"]
    done = subprocess.run(
        line,
        check=False,
        cwd=ROOT,
        env=environment(home, superlink_cleanup) | {"PATH": f"{flwr.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (out / "summary.json").exists(), f"{shlex.join(line)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    without_times = [{key: value for key, value in summary(path).items() if key != "seconds"} for path in (first, out)]
    assert without_times[0] == without_times[1]
    assert (out / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()


@pytest.mark.federation
def test_ctrl_c_leaves_a_valid_run_directory_and_no_process(home: Path) -> None:
    out, mark = home / "interrupted", f"interrupted-{os.getpid()}"
    process = subprocess.Popen(
        command(out, rounds=10_000, method="fedavg"),
        cwd=ROOT,
        env=environment(home, mark),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (out / "metrics.csv").exists() and "\n2,overall" in (out / "metrics.csv").read_text())
        # What a terminal does: the whole foreground group gets the signal.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
        wait_until(lambda: not marked(mark), seconds=30)
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
    value = summary(out)
    assert value["outcome"] == "interrupted"
    assert value["rounds"] >= 2
    assert (out / "models" / "group-0.safetensors").exists()


def wait_until(condition: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def marked(mark: str) -> list[int]:
    """Processes that carry the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if f"COTERIE_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def test_small_sites_are_simulated_in_one_process(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.simulation import choice

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for seconds, cores, alone in ((1.0, 2, True), (50.0, 2, True), (51.0, 2, False), (30.0, 8, False), (1e9, 1, True)):
        assert choice.sooner_alone(seconds, cores) is alone
    small = small_config(method="fedavg", rounds=2)
    assert choice.one_process(small), "two rounds of 6 sites with 8-pixel images take less than a second"
    assert not choice.one_process(small.model_copy(update={"rounds": 100_000}))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert choice.one_process(small.model_copy(update={"rounds": 100_000}))
