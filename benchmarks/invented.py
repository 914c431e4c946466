"""An invented run of any size, told to the listeners that record real ones: for measuring and testing the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.config import Config, parse
from common.metrics import Metrics, site_spread
from common.signature import Signature
from common.site_card import SiteCard
from server.clustering import group_differences, overlap_distance
from server.history.events import (
    Event,
    GroupKept,
    GroupsCompared,
    GroupsFormed,
    Listener,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunStarted,
    SiteCleared,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    SitesMoved,
    StageStarted,
)
from server.listeners.artifacts import Artifacts
from server.listeners.journal import Journal
from server.listeners.summary import Summary
from server.listeners.table import MetricsTable
from server.methods import get_method
from server.migration import Evidence

CLASSES = 10
_DIMENSION = 64
_TESTED = 25  # test samples of a site
_NAMING = 0.3  # accuracy of always naming a site's most frequent class
_SIZE = 250_000  # bytes of a model


@dataclass(frozen=True)
class Plot:
    """What happens in the invented run.

    `kinds` kinds of sites hold different classes; `spread` is how far sites of a kind differ. With `trouble` sites
    fail, move, are cleared, and one comes late.
    """

    sites: int = 20
    kinds: int = 4
    rounds: int = 10
    method: str = "fmcl"
    spread: float = 0.3
    trouble: bool = False
    seed: int = 0
    names: tuple[str, ...] = ()
    reason: str = "no reply within 60 s (round.deadline)"
    outcome: str = "finished"


def write_run(directory: Path, plot: Plot) -> Path:
    """Write the run directory of an invented run, without models and page."""
    (directory / "models").mkdir(parents=True)
    listeners = [Journal(directory), MetricsTable(directory), Summary(directory), Artifacts(directory)]
    for event in story(plot):
        _tell(listeners, event)
    return directory


def _tell(listeners: Sequence[Listener], event: Event) -> None:
    for listener in listeners:
        listener.hear(event)


def story(plot: Plot) -> list[Event]:
    """All events of the run, in order."""
    rng = np.random.default_rng(plot.seed)
    config = _config(plot)
    names = plot.names or tuple(f"{index:03d}" for index in range(plot.sites))
    kind = np.arange(plot.sites) % plot.kinds
    counts, signatures = _data(plot, kind, rng)
    events: list[Event] = [RunStarted(config), StageStarted("enrol", 0, plot.sites)]
    for index, name in enumerate(names):
        events.append(ReplyAccepted("enrol", 0, name, 0, 4 * _DIMENSION * len(signatures[index].classes), 0.5))
        events.append(SiteEnrolled(_card(name, counts[index]), late=False))
    method = get_method(plot.method)
    distance = None if method.distance is None else overlap_distance(signatures)
    grouping = method.partition.form(distance, plot.sites, config.cluster)
    labels = dict(zip(names, grouping.labels.tolist(), strict=True))
    chosen = grouping.selection
    events.append(
        GroupsFormed(
            names, tuple(labels.values()), distance, chosen.scores if chosen else None,
            tuple(chosen.window) if chosen else None, chosen.cv if chosen else None,
        )
    )  # fmt: skip
    if distance is not None and len(set(labels.values())) > 1:
        sizes = [int(drawn.sum()) for drawn in counts]
        events.append(GroupsCompared(tuple(group_differences(signatures, sizes, list(labels.values())))))
    finished: RoundFinished | None = None
    for number in range(1, plot.rounds + 1):
        events += _round(plot, number, names, labels, counts, finished)
        finished = _finished(plot, number, names, labels, rng)
    if finished is not None:
        # The last round has nobody to test it but itself.
        events.append(StageStarted("evaluate", plot.rounds, len(finished.sites)))
        events += [ReplyAccepted("evaluate", plot.rounds, name, _SIZE, 12_000, 0.1) for name in finished.sites]
        events.append(finished)
    events.append(RunEnded(plot.outcome, "" if plot.outcome == "finished" else "RuntimeError: the server fell over"))  # type: ignore[arg-type]
    return events


def _config(plot: Plot) -> Config:
    rule = {"migration.rule": "guarded"} if plot.trouble else {}
    return parse({"method": plot.method, "sites": plot.sites, "rounds": plot.rounds, "seed": plot.seed} | rule)


def _data(plot: Plot, kind: np.ndarray, rng: np.random.Generator) -> tuple[list[np.ndarray], list[Signature]]:
    centres = rng.normal(size=(CLASSES, _DIMENSION))
    counts, signatures = [], []
    for index in range(plot.sites):
        weights = np.where(np.arange(CLASSES) % plot.kinds == kind[index] % CLASSES, 8.0, 0.4)
        drawn = rng.multinomial(int(rng.integers(30, 200)), rng.dirichlet(weights))
        drawn[int(kind[index]) % CLASSES] += 1
        classes = np.flatnonzero(drawn)
        shape = (len(classes), _DIMENSION)
        prototypes = (centres[classes] + plot.spread * rng.normal(size=shape)).astype(np.float32)
        counts.append(drawn)
        signatures.append(Signature(classes.astype(np.int64), prototypes, drawn[classes] / drawn.sum()))
    return counts, signatures


def _card(name: str, counts: np.ndarray) -> SiteCard:
    return SiteCard(name, int(counts.sum()), max(1, int(counts.sum()) // 4), tuple(map(int, counts)), 0, ())


def _absent(plot: Plot, number: int, names: Sequence[str]) -> set[str]:
    return {names[1]} if plot.trouble and number in (2, 3, 4) and len(names) > 1 else set()


def _round(
    plot: Plot,
    number: int,
    names: Sequence[str],
    labels: dict[str, int],
    counts: Sequence[np.ndarray],
    before: RoundFinished | None,
) -> list[Event]:
    """One exchange: the sites train, and test what the round before has left."""
    absent = _absent(plot, number, names)
    events: list[Event] = []
    if plot.trouble and number == 3:
        labels["late-1"] = 0
        events += [SiteEnrolled(_card("late-1", counts[0]), late=True), SitePlaced(3, "late-1", 0, 0.62)]
    events.append(StageStarted("train", number, len(labels)))
    events += [
        ReplyAccepted("train", number, name, _SIZE, _SIZE + 12_000, 0.9) for name in labels if name not in absent
    ]
    events += [SiteLeftOut("train", number, name, plot.reason) for name in sorted(absent)]
    if before is not None:
        events.append(before)
    if plot.trouble and number == 2:
        events.append(GroupKept(2, labels[names[1]], 0, 1))
    if plot.trouble and number == plot.rounds // 2 and len(set(labels.values())) > 1:
        events += _moves(number, names, labels)
    events.append(RoundTrained(number, 0.5, dict(labels)))
    return events


def _finished(
    plot: Plot, number: int, names: Sequence[str], labels: dict[str, int], rng: np.random.Generator
) -> RoundFinished:
    """How the models of a round do."""
    absent = _absent(plot, number, names)
    sites = {}
    for name in sorted(name for name in labels if name not in absent):
        right = float(np.clip(0.95 - 0.6 * np.exp(-number / 4) + rng.normal(0, 0.05), 0, 1))
        sites[name] = Metrics(right, right, 0.5 + right / 2, 1 - right, _TESTED, _NAMING)
    groups = {
        group: _mean([sites[name] for name in sites if labels[name] == group])
        for group in sorted({labels[name] for name in sites})
    }
    mean, worst = site_spread([metrics.accuracy for metrics in sites.values()])
    overall = _mean(list(sites.values()))
    confusions = {name: _confusion(place % CLASSES, one.accuracy) for place, (name, one) in enumerate(sites.items())}
    return RoundFinished(
        number, overall, groups, sites, dict(labels), mean, worst, 1 - overall.accuracy, {}, confusions=confusions
    )


def _confusion(label: int, accuracy: float) -> np.ndarray:
    """Cells of a site that has one class, and takes some of it for the next."""
    hits = round(accuracy * _TESTED)
    cells = [(label, label, hits), (label, (label + 1) % CLASSES, _TESTED - hits)]
    return np.array([cell for cell in cells if cell[2]], np.int64).reshape(-1, 3)


def _moves(number: int, names: Sequence[str], labels: dict[str, int]) -> list[Event]:
    groups = sorted(set(labels.values()))
    events: list[Event] = []
    for name in names[2:5]:
        origin = labels[name]
        target = next(group for group in groups if group != origin)
        evidence = Evidence(-0.31, {target: 0.72}, 4.2, 0.9, 1.1, {origin: 2.5, target: 0.2})
        events.append(SitesMoved(number, (name,), origin, target, False, evidence))
        labels[name] = target
    name = names[0]
    events.append(SiteCleared(number, name, labels[name], Evidence(-0.05, {}, 1.4, 0.4, None, {labels[name]: 0.1})))
    return events


def _mean(values: Sequence[Metrics]) -> Metrics:
    accuracy = float(np.mean([one.accuracy for one in values]))
    return Metrics(accuracy, accuracy, 0.5 + accuracy / 2, 1 - accuracy, sum(one.count for one in values), _NAMING)
