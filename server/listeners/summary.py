"""`summary.json`: what came out, for other programs."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from common.config import Config
from common.metrics import Metrics
from server import run_directory
from server.events import (
    Event,
    GroupsFormed,
    RoundFinished,
    RunEnded,
    RunStarted,
    SiteLeftOut,
    SiteMoved,
    SitePlaced,
    StageStarted,
)
from server.run_directory import finite


class Summary:
    """Remembers the best and the last round, and how long each stage took."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / run_directory.SUMMARY
        self._config: Config | None = None
        self._labels: dict[str, int] = {}
        self._best: dict[str, float | int | None] | None = None
        self._last: dict[str, float | int | None] | None = None
        self._best_accuracy = -1.0
        self._spread: tuple[float | None, float | None] = (None, None)
        self._left_out = 0
        self._moves: list[dict[str, object]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started = self._stage_started = time.perf_counter()
        self._stage = "start"

    def hear(self, event: Event) -> None:
        """Keep score; write when the run ends."""
        match event:
            case RunStarted(config):
                self._config = config
            case StageStarted(stage):
                self._enter(stage)
            case GroupsFormed():
                self._labels = dict(zip(event.sites, event.labels, strict=True))
            case SitePlaced(site=site, group=group):
                self._labels[site] = group
            case SiteLeftOut():
                self._left_out += 1
            case SiteMoved():
                self._labels[event.site] = event.target
                self._moves.append(_move(event))
            case RoundFinished():
                # Only figures are kept: an event holds every group's model.
                self._last = _figures(event.round_number, event.overall)
                self._spread = (finite(event.mean_site_accuracy), finite(event.worst_tenth_accuracy))
                self._labels = dict(event.labels)
                if event.overall.accuracy > self._best_accuracy:
                    self._best, self._best_accuracy = self._last, event.overall.accuracy
            case RunEnded(outcome):
                self._enter("end")
                self._write(outcome)

    def _enter(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[self._stage] += now - self._stage_started
        self._stage, self._stage_started = stage, now

    def _write(self, outcome: str) -> None:
        assert self._config is not None
        seconds = {stage: round(value, 3) for stage, value in self._seconds.items()}
        seconds["total"] = round(time.perf_counter() - self._started, 3)
        value = {
            "method": self._config.method,
            "seed": self._config.seed,
            "rounds": self._last["round"] if self._last else 0,
            "outcome": outcome,
            "k": len(set(self._labels.values())),
            "labels": dict(sorted(self._labels.items())),
            "best": self._best,
            "final": self._last,
            "mean_site_accuracy": self._spread[0],
            "worst_tenth_accuracy": self._spread[1],
            "moves": self._moves,
            "left_out": self._left_out,
            "seconds": seconds,
        }
        run_directory.write_json(self._path, value)


def _move(event: SiteMoved) -> dict[str, object]:
    where = {"round": event.round_number, "site": event.site, "from": event.origin, "to": event.target}
    return where | {"founded": event.founded} | asdict(event.evidence)


def _figures(round_number: int, metrics: Metrics) -> dict[str, float | int | None]:
    return {
        "round": round_number,
        "accuracy": finite(metrics.accuracy),
        "macro_f1": finite(metrics.macro_f1),
        "auc": finite(metrics.auc),
    }
