"""Preview: groups without training, and in words whether they are worth it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main
from common.config import Config, load
from server.app import conduct
from server.history.run_directory import open_run
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid

SETTINGS = """
method = "fmcl"
sites = 8
rounds = 7
[data]
image_size = 8
channels = 1
[partition]
scheme = "disjoint"
groups = 2
[encoder]
name = "random:resnet10t"
image_size = 32
"""


@pytest.fixture
def settings(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration, and an engine that runs it in this process."""
    grids = []

    def simulate(config: Config, *, jobs: int = 0) -> str:
        directory = open_run(config)
        grids.append(LoopbackGrid(config.sites))
        conduct(grids[-1], config, run_listeners(directory), directory=directory)
        kinds = {message.metadata.message_type for message in grids[-1].pushed}
        assert kinds == {"query.signature"}, "something was trained"
        return "finished"

    monkeypatch.setattr("cli.simulation.engine.simulate", simulate)
    path = tmp_path / "settings.toml"
    path.write_text(f'cache = "{shared_cache}"\n{SETTINGS}')
    return path


def test_it_groups_and_says_whether_that_is_worth_it(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preview", str(settings), "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    for words in (
        "Are groups worth it?",
        "How many?",
        "Doubtful sites?",
        "What differs between the groups?",
        f"The page: {tmp_path / 'run' / 'report.html'}",
    ):
        assert words in told
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "(preview)" in text
    assert "trained nothing yet" in text
    assert 'id="training-section"' not in text
    assert 'id="stability"' in text


def test_a_method_that_compares_nobody_has_no_preview(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(settings), "--set", "method=fedavg"]) == 2
    told = capsys.readouterr().err
    assert "it takes one of fecfl, fecfl-fm, fedclust, fedcm" in told
    assert "fmcl, fmcl-fixed-k" in told
    assert "ifca" not in told


def test_real_sites_are_asked_by_a_run_without_rounds(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Config] = []

    def flower(self: object, file: Path) -> int:
        submitted.append(load(file))
        return 0

    monkeypatch.setattr("cli.deployment.submission._Follower.submit", flower)
    folder = tmp_path / "federation"
    assert (
        main(["provision", str(folder), "--server", "127.0.0.1:1", "--sites", "a,b", "--control", "127.0.0.1:2"]) == 0
    )
    text = settings.read_text(encoding="utf-8").replace("sites = ", "# ")
    settings.write_text(text, encoding="utf-8")
    assert main(["preview", str(settings), "--on", str(folder), "--set", 'data.classes="x,y"']) == 0
    assert (submitted[0].rounds, submitted[0].sites) == (0, 2)
    assert Path(submitted[0].out).parent == folder / "runs"
