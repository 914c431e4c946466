"""Trackers hear the same events as everybody, are off by default, and never harm a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import SettingsError, parse
from server.history.event_log import read_events
from server.history.events import RoundFinished
from server.listeners import require_trackers, run_listeners
from server.listeners.scores import scores
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, made


def tracked_run(config_maker: MakeConfig, path: Path, name: str) -> Path:
    from server.app import conduct

    config = config_maker(rounds=2, track=name)
    conduct(LoopbackGrid(config.sites), config, run_listeners(made(path), config.track), directory=path)
    return path


def expected(path: Path) -> dict[int, float]:
    return {event.round_number: event.overall.accuracy for event in read_events(path).of(RoundFinished)}


def test_they_are_off_by_default(tmp_path: Path) -> None:
    assert parse({}).track == ()
    names = {type(one).__name__ for one in run_listeners(made(tmp_path / "run"))}
    assert not names & {"TensorBoard", "MLflow"}


def test_unknown_or_missing_ones_are_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="it takes tensorboard, mlflow"):
        require_trackers(("wandb",))
    monkeypatch.setattr("server.listeners.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'coterie\[tensorboard\]'"):
        require_trackers(("tensorboard",))


def test_tensorboard_files_hold_every_round(small_config: MakeConfig, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = tracked_run(small_config, tmp_path / "run", "tensorboard")
    found = accumulator.EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    assert {one.step: pytest.approx(one.value) for one in found.Scalars("overall/accuracy")} == expected(path)
    assert "groups/0/accuracy" in found.Tags()["scalars"]
    assert found.Tags()["histograms"] == ["sites/accuracy"]


def test_mlflow_has_settings_rounds_and_page(
    small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = tracked_run(small_config, tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("coterie")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "fmcl"
    assert run.data.tags["coterie.directory"] == str(path)
    history = client.get_metric_history(run.info.run_id, "overall/accuracy")
    assert {one.step: one.value for one in history} == pytest.approx(expected(path))
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"summary.json", "report.html"}
    assert list((path / "mlflow").rglob("report.html"))


def test_scores_leave_out_what_is_not_defined() -> None:
    from common.metrics import Metrics
    from server.history.events import RoundFinished

    nan = float("nan")
    event = RoundFinished(
        1, Metrics(0.5, nan, nan, 1.0, 4), {3: Metrics(nan, nan, nan, nan, 0)}, {}, {}, nan, 0.5, nan, {}
    )
    assert scores(event) == {"overall/accuracy": 0.5, "overall/loss": 1.0, "sites/worst_tenth_accuracy": 0.5}
