"""An MLflow run beside the run directory (extra: coterie[mlflow]).

It goes where MLFLOW_TRACKING_URI says; without that, into `mlflow.db` and `mlflow/` of the run directory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# Before MLflow is imported: it sends nothing about its use to anybody, and a tracking server that does not answer is
# given up soon, because the run waits meanwhile.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from common.config import Config, flat_values
from server.history import run_directory
from server.history.events import Event, GroupsFormed, RoundFinished, RunEnded, RunResumed, RunStarted
from server.listeners.scores import scores

EXPERIMENT = "coterie"
DATABASE, FILES = "mlflow.db", "mlflow"
_TAG = "coterie.directory"
# Most parameters of one request, and longest value, that MLflow takes.
_BATCH, _LONGEST = 100, 500
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """Logs settings, what each round achieved, and in the end the summary and the page."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._client: MlflowClient | None = None
        self._run = ""

    def hear(self, event: Event) -> None:
        """Log as it happens."""
        match event:
            case RunStarted(config):
                self._begin(config, resumed=False)
            case RunResumed(config):
                self._begin(config, resumed=True)
            case GroupsFormed():
                self._tag("coterie.groups", str(len(set(event.labels))))
            case RoundFinished():
                now = _milliseconds()
                entries = [Metric(name, value, now, event.round_number) for name, value in scores(event).items()]
                self._ready.log_batch(self._run, metrics=entries)
            case RunEnded(outcome, reason):
                self._end(outcome, reason)

    @property
    def _ready(self) -> MlflowClient:
        assert self._client is not None
        return self._client

    def _begin(self, config: Config, *, resumed: bool) -> None:
        elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(elsewhere or f"sqlite:///{self._directory / DATABASE}")
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        files = None if elsewhere else (self._directory / FILES).as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT, files)
        directory = str(self._directory)
        if resumed:
            quoted = directory.replace("'", "''")
            known = self._client.search_runs([number], f"tags.`{_TAG}` = '{quoted}'", max_results=1)
            if known:
                self._run = known[0].info.run_id
                return
        name = self._directory.name
        self._run = self._client.create_run(number, run_name=name, tags={_TAG: directory}).info.run_id
        values = [Param(key, str(value)[:_LONGEST]) for key, value in flat_values(config).items()]
        for start in range(0, len(values), _BATCH):
            self._client.log_batch(self._run, params=values[start : start + _BATCH])

    def _tag(self, key: str, value: str) -> None:
        self._ready.set_tag(self._run, key, value)

    def _end(self, outcome: str, reason: str) -> None:
        if reason:
            self._tag("coterie.reason", reason)
        for name in (run_directory.SUMMARY, run_directory.REPORT):
            if (self._directory / name).exists():
                self._ready.log_artifact(self._run, str(self._directory / name))
        self._ready.set_terminated(self._run, _STATUS[outcome])


def _milliseconds() -> int:
    return int(time.time() * 1000)
