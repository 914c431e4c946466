"""`summary.json`: what came out, for other programs."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.config import Config
from common.naming import beside_naming
from server.history import run_directory
from server.history.event_log import read_events
from server.history.events import (
    Event,
    GroupsFormed,
    RoundClosed,
    RoundFinished,
    RunEnded,
    RunResumed,
    RunStarted,
    SiteLeftOut,
    SitePlaced,
    SitesMoved,
    SitesPersonalised,
    StageStarted,
)
from server.history.ledger import Ruling, evidence_entry, rulings
from server.history.run_directory import finite
from server.history.truth import agreement_with_truth


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
        self._beside: dict[str, dict[str, float | None]] = {}
        self._naming: dict[str, Any] | None = None
        self._left_out = 0
        # How often a round closed without a site, and when the last one did on the virtual clock.
        self._late: int | None = None
        self._clock: float | None = None
        self._personalised: dict[str, Any] | None = None
        self._moves: list[dict[str, Any]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started = self._stage_started = time.perf_counter()
        self._stage = "start"

    def hear(self, event: Event) -> None:
        """Keep score; write when the run ends."""
        match event:
            case RunStarted(config):
                self._config = config
            case RunResumed(config):
                self._config = config
                self._labels = dict(event.labels)
                self._recall(event.round_number)
            case StageStarted(stage):
                self._enter(stage)
            case GroupsFormed():
                self._labels = dict(zip(event.sites, event.labels, strict=True))
            case SitePlaced(site=site, group=group):
                self._labels[site] = group
            case SiteLeftOut() | RoundClosed() | SitesMoved() | RoundFinished():
                self._score(event)
            case SitesPersonalised():
                self._personalised = {
                    "mode": event.mode,
                    **{key: finite(value) for key, value in asdict(event.overall).items()},
                    "mean_site_accuracy": finite(event.mean_site_accuracy),
                    "worst_tenth_accuracy": finite(event.worst_tenth_accuracy),
                    "sites": {
                        name: {
                            "kept": event.kept[name],
                            "accuracy": finite(metrics.accuracy),
                            "samples": metrics.count,
                        }
                        for name, metrics in event.sites.items()
                    },
                }
            case RunEnded(outcome):
                self._enter("end")
                self._write(outcome)

    def _recall(self, done: int) -> None:
        """Take up the score where an earlier process left it; who is in which group is known better by now."""
        labels = dict(self._labels)
        for event in read_events(self._path.parent).resumed(done).events:
            self._score(event)
        self._labels = labels

    def _score(self, event: Event) -> None:
        match event:
            case SiteLeftOut():
                self._left_out += 1
            case RoundClosed():
                self._late = (self._late or 0) + len(event.late)
                self._clock = event.seconds
            case SitesMoved():
                self._labels |= dict.fromkeys(event.sites, event.target)
                self._moves += map(_move, rulings([event]))
            case RoundFinished():
                # Only figures are kept: an event holds every group's model.
                overall = {key: finite(getattr(event.overall, key)) for key in ("accuracy", "macro_f1", "auc")}
                self._last = {"round": event.round_number, **overall}
                accuracy = overall["accuracy"]
                if accuracy is not None and accuracy > self._best_accuracy:
                    self._best, self._best_accuracy = self._last, accuracy
                self._naming = _beside_naming(event)
                self._spread = (finite(event.mean_site_accuracy), finite(event.worst_tenth_accuracy))
                self._beside = {
                    name: {"accuracy": finite(one.accuracy), "mean_site_accuracy": finite(one.mean_site_accuracy)}
                    for name, one in (("shared", event.shared), ("held", event.held))
                    if one is not None
                }

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
            # What always naming each site's most frequent class would get of the last test.
            "naming": self._naming,
            # Of other models than those that the figures above are of.
            **self._beside,
            "moves": self._moves,
            "left_out": self._left_out,
            "seconds": seconds,
            **({} if self._late is None else {"late": self._late}),
            **({} if self._clock is None else {"virtual_seconds": round(self._clock, 3)}),
            # Never part of the figures above: only runs that ask for it have it.
            **({"personalised": self._personalised} if self._personalised else {}),
            **({} if (ari := agreement_with_truth(self._config, self._labels)) is None else {"ari": ari}),
        }
        run_directory.write_json(self._path, value)


def _beside_naming(event: RoundFinished) -> dict[str, Any] | None:
    """How the models do beside always naming the most frequent class: all of them, and each group's."""
    every = beside_naming(event.sites.values())
    if every is None:
        return None
    groups: dict[str, dict[str, Any]] = {}
    for group in sorted(set(event.labels.values())):
        of = beside_naming(one for site, one in event.sites.items() if event.labels.get(site) == group)
        if of is not None:
            groups[str(group)] = {"accuracy": of.accuracy, "naming": of.naming, "verdict": of.verdict}
    return {"accuracy": every.naming, "verdict": every.verdict, "groups": groups}


def _move(ruling: Ruling) -> dict[str, Any]:
    where = {"round": ruling.round_number, "site": ruling.site, "from": ruling.origin, "to": ruling.target}
    return {**where, "founded": ruling.founded, **evidence_entry(ruling.evidence)}
