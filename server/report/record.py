"""A run as its directory tells it, finished or still growing.

Whatever is missing or damaged is left out and named in `notes`: a page about half a run is better than none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.classes import KNOWN
from common.config import ClusterSettings, SettingsError
from server import run_directory
from server.clustering.distances import checked_distance
from server.ledger import rulings
from server.methods import METHODS, Method
from server.run_directory import read_events

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Card:
    """What a site said of itself last."""

    train_samples: int
    test_samples: int
    class_counts: tuple[int, ...]
    faults: int


@dataclass(frozen=True)
class Grouping:
    """How the sites were grouped before the first round. `labels[i]` is the group of `sites[i]`."""

    sites: tuple[str, ...]
    labels: NDArray[np.int64]
    window: tuple[int, ...]
    cv: float | None


@dataclass(frozen=True)
class Round:
    """What was measured after a round; NaN where nothing could be."""

    number: int
    accuracy: float
    macro_f1: float
    auc: float
    mean_of_sites: float
    worst_tenth: float
    train_loss: float
    groups: dict[int, float]
    sites: dict[str, float]
    tested: dict[str, int]
    labels: dict[str, int]


@dataclass(frozen=True)
class Personalised:
    """What sites' own models achieve after the last round, and which model each keeps; NaN where unknown."""

    mode: str
    accuracy: float
    macro_f1: float
    auc: float
    mean_of_sites: float
    worst_tenth: float
    sites: dict[str, float]
    kept: dict[str, str]


@dataclass(frozen=True)
class Ruling:
    """A site moved, or was examined and stays (`target` = `origin`).

    `evidence` has the figures of an examination, or the `reason` of the method's own rule.
    """

    round_number: int
    site: str
    origin: int
    target: int
    founded: bool
    evidence: Event


@dataclass(frozen=True)
class Incident:
    """Something that did not go as it should."""

    round_number: int
    stage: str
    who: str
    reason: str


@dataclass
class Traffic:
    """What one site exchanged with the server in one stage, over all rounds: bytes of arrays, its own seconds."""

    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    replies: int = 0


@dataclass
class RunRecord:
    """Everything a page shows of a run."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "running"
    reason: str = ""
    cards: dict[str, Card] = field(default_factory=dict)
    grouping: Grouping | None = None
    distance: NDArray[np.float64] | None = None
    placed: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # round, group, confidence
    rounds: list[Round] = field(default_factory=list)
    personalised: Personalised | None = None
    solved: tuple[float, tuple[int, ...]] | None = None  # threshold, widths of the layers: what validation chose
    rulings: list[Ruling] = field(default_factory=list)
    retired: dict[int, int] = field(default_factory=dict)  # group → round since which nobody is in it
    incidents: list[Incident] = field(default_factory=list)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)  # site → stage
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    kept: set[str] = field(default_factory=set)  # sites that have their final model on their own disk
    notes: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        """What the user typed."""
        return str(self.config.get("method", "?"))

    @property
    def recipe(self) -> Method | None:
        """The method, if this version still has it."""
        return METHODS.get(self.method)

    @property
    def title(self) -> str:
        """What the method is called."""
        return self.recipe.title if self.recipe else self.method

    @property
    def clustering(self) -> ClusterSettings:
        """The settings of the grouping, as they were applied; the defaults where they cannot be read."""
        try:
            chosen = {} if self.solved is None else {"threshold": self.solved[0]}
            return ClusterSettings.model_validate(dict(self.config.get("cluster", {})) | chosen, strict=False)
        except (TypeError, ValueError):
            return ClusterSettings()

    @property
    def seed(self) -> int:
        """Of the run; 0 if it cannot be read."""
        return seed if isinstance(seed := self.config.get("seed"), int) and seed >= 0 else 0

    @property
    def planned_rounds(self) -> int:
        """How many rounds the run was to have."""
        return rounds if isinstance(rounds := self.config.get("rounds"), int) else 0

    @property
    def last(self) -> Round | None:
        """The last round that is complete."""
        return self.rounds[-1] if self.rounds else None

    @property
    def labels(self) -> dict[str, int]:
        """The group of every site, as far as is known now."""
        first = (
            {} if self.grouping is None else dict(zip(self.grouping.sites, self.grouping.labels.tolist(), strict=True))
        )
        first |= {site: group for site, (_, group, _) in self.placed.items()}
        if self.last is not None:
            first |= self.last.labels
        return dict(sorted(first.items()))

    @property
    def groups(self) -> dict[int, list[str]]:
        """Sites by group, as far as is known now."""
        grouped: dict[int, list[str]] = {}
        for site, group in sorted(self.labels.items(), key=lambda item: (item[1], item[0])):
            grouped.setdefault(group, []).append(site)
        return grouped

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the run does not tell them."""
        data = self.config.get("data", {})
        named = data.get("classes") or KNOWN.get(data.get("name") or data.get("source"), ())
        width = max((len(card.class_counts) for card in self.cards.values()), default=0)
        return tuple(map(str, named)) if len(named) == width else tuple(f"class {index}" for index in range(width))

    @property
    def moves(self) -> list[Ruling]:
        """The rulings that changed a site's group."""
        return [ruling for ruling in self.rulings if ruling.origin != ruling.target]


def read_run(directory: Path) -> RunRecord:
    """Read a run directory, or raise `SettingsError` if it is not one."""
    record = RunRecord(directory.resolve().name)
    try:
        events = read_events(directory)
    except OSError as error:
        raise SettingsError(f"cannot read {error.filename}: {error.strerror}; RUN is the directory of a run") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{directory / run_directory.EVENTS} is not the log of a run") from None
    try:
        record.about = json.loads((directory / run_directory.RUN).read_text(encoding="utf-8"))
        record.config = dict(record.about["config"])
    except (OSError, ValueError, KeyError, TypeError):
        record.notes.append(f"{run_directory.RUN} is missing or damaged; settings are taken from the log.")
    unreadable = 0
    clock = _Clock(record.seconds)
    for event in events:
        try:
            clock.hear(event)
            _take(record, event)
        except (KeyError, TypeError, ValueError, AttributeError):
            unreadable += 1
    if unreadable:
        record.notes.append(f"{unreadable} lines of {run_directory.EVENTS} could not be understood and are left out.")
    if not events:
        record.notes.append("Nothing has happened yet in this run.")
    _read_distances(record, directory)
    return record


class _Clock:
    """Adds up how long each stage took, by the times in the log; the gap before a resumption counts for nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._stage = "start"
        self._last: float | None = None

    def hear(self, event: Event) -> None:
        now = float(event["time"])
        if event["event"] == "RunResumed":
            self._last = None
        if self._last is not None and now > self._last:
            self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._last
        self._last = now
        if event["event"] == "StageStarted":
            self._stage = str(event["stage"])


def _take(record: RunRecord, event: Event) -> None:
    match event["event"]:
        case "RunStarted" | "RunResumed":
            record.config = record.config or dict(event["config"])
            record.outcome, record.reason = "running", ""
            for card in event.get("cards", ()):
                record.cards[str(card["name"])] = _card(card)
        case "SiteEnrolled" | "SiteRenewed":
            record.cards[str(event["card"]["name"])] = _card(event["card"])
        case "GroupsFormed":
            record.grouping = _grouping(event)
        case "SitePlaced":
            record.placed[str(event["site"])] = (
                int(event["round_number"]), int(event["group"]), float(event["confidence"])
            )  # fmt: skip
        case "RoundFinished":
            record.rounds.append(_round(event))
        case "SiteMoved" | "SiteCleared" | "SitesRegrouped":
            record.rulings += [_ruling(entry) for entry in rulings(event)]
        case "ReplyAccepted":
            _add_traffic(record, event)
        case "RunEnded":
            record.outcome, record.reason = str(event["outcome"]), str(event["reason"])
        case _:
            _take_model(record, event)
            if incident := _incident(event):
                record.incidents.append(incident)


def _take_model(record: RunRecord, event: Event) -> None:
    """What became of a group's model, or of a site's own."""
    match event["event"]:
        case "Solved":
            record.solved = (float(event["threshold"]), tuple(int(width) for width in event["hidden"]))
        case "GroupRetired":
            record.retired[int(event["group"])] = int(event["round_number"])
        case "SitesPersonalised":
            record.personalised = _personalised(event)
        case "ModelKept":
            record.kept.add(str(event["site"]))


def _grouping(event: Event) -> Grouping:
    grouping = Grouping(
        tuple(map(str, event["sites"])),
        np.array([int(label) for label in event["labels"]], np.int64),
        tuple(int(k) for k in event["k_window"] or ()),
        None if event["cv"] is None else float(event["cv"]),
    )
    if len(grouping.sites) != len(grouping.labels):
        raise ValueError("sites and labels do not match")
    return grouping


def _card(card: Event) -> Card:
    counts = tuple(int(count) for count in card["class_counts"])
    return Card(int(card["train_samples"]), int(card["test_samples"]), counts, int(card["fault_count"]))


def _round(event: Event) -> Round:
    overall = event["overall"]
    return Round(
        number=int(event["round_number"]),
        accuracy=_number(overall["accuracy"]),
        macro_f1=_number(overall["macro_f1"]),
        auc=_number(overall["auc"]),
        mean_of_sites=_number(event["mean_site_accuracy"]),
        worst_tenth=_number(event["worst_tenth_accuracy"]),
        train_loss=_number(event["train_loss"]),
        groups={int(group): _number(metrics["accuracy"]) for group, metrics in event["groups"].items()},
        sites={str(site): _number(metrics["accuracy"]) for site, metrics in event["sites"].items()},
        tested={str(site): int(metrics["count"]) for site, metrics in event["sites"].items()},
        labels={str(site): int(group) for site, group in event["labels"].items()},
    )


def _personalised(event: Event) -> Personalised:
    overall = event["overall"]
    return Personalised(
        mode=str(event["mode"]),
        accuracy=_number(overall["accuracy"]),
        macro_f1=_number(overall["macro_f1"]),
        auc=_number(overall["auc"]),
        mean_of_sites=_number(event["mean_site_accuracy"]),
        worst_tenth=_number(event["worst_tenth_accuracy"]),
        sites={str(site): _number(metrics["accuracy"]) for site, metrics in event["sites"].items()},
        kept={str(site): str(what) for site, what in event["kept"].items()},
    )


def _ruling(event: Event) -> Ruling:
    stays = event["event"] == "SiteCleared"
    origin = int(event["group"] if stays else event["origin"])
    return Ruling(
        int(event["round_number"]),
        str(event["site"]),
        origin,
        origin if stays else int(event["target"]),
        not stays and bool(event["founded"]),
        dict(event["evidence"]),
    )


def _add_traffic(record: RunRecord, event: Event) -> None:
    stages = record.traffic.setdefault(str(event["site"]), {})
    entry = stages.setdefault(str(event["stage"]), Traffic())
    entry.sent += int(event["bytes_sent"])
    entry.received += int(event["bytes_received"])
    entry.seconds += _number(event["seconds"])
    entry.replies += 1


def _incident(event: Event) -> Incident | None:
    match event["event"]:
        case "SiteLeftOut":
            who, reason, stage = str(event["site"]), str(event["reason"]), str(event["stage"])
        case "GroupKept":
            who, stage = f"group {int(event['group'])}", "train"
            reason = f"kept its model: {int(event['replies'])} of {int(event['needed'])} updates needed"
        case "CheckpointFailed":
            who, reason, stage = "server", f"no checkpoint: {event['reason']}", "checkpoint"
        case _:
            return None
    return Incident(int(event["round_number"]), stage, who, reason)


def _number(value: object) -> float:
    """A number of the log, where null stands for what is not defined."""
    return math.nan if value is None else float(value)  # type: ignore[arg-type]


def _read_distances(record: RunRecord, directory: Path) -> None:
    if record.grouping is None:
        return
    path = directory / run_directory.DISTANCES
    if not path.exists():
        return
    try:
        matrix = checked_distance(np.load(path, allow_pickle=False))
        if len(matrix) != len(record.grouping.sites):
            raise ValueError(f"{len(matrix)} rows for {len(record.grouping.sites)} sites")
    except (OSError, ValueError) as error:
        record.notes.append(f"{run_directory.DISTANCES} cannot be used: {error}.")
    else:
        record.distance = matrix
