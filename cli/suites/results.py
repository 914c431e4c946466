"""From run directories to the figures of a table. Arrays and files in, figures out; nothing is run here."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from cli.suites.running import read_cost
from cli.suites.suite import METRICS, Cell
from common.foreign import read_json
from common.intervals import judged, newcombe
from server.history import run_directory
from server.history.event_log import EventLog, read_events
from server.history.events import ReplyAccepted, RoundClosed
from server.history.run_directory import is_finished

# What is read of every round, over all sites.
# Accuracies of other models than those that a run is tested with; not every run has them.
BESIDE = ("mean_site_shared_accuracy", "mean_site_held_accuracy")
CURVES = (*METRICS, "mean_site_accuracy", "worst_tenth_accuracy", *BESIDE)
# When each tested round closed, in virtual seconds; NaN without a clock.
CLOCK = "virtual_seconds"
Curves = dict[str, NDArray[np.float64]]

ALONE, COMMON = "local", "fedavg"
_MEGABYTE = 1e6
_ROUND = "round"


@dataclass(frozen=True)
class Outcome:
    """What one finished run came to.

    Attributes
    ----------
    curves : float64[rounds] by name
        Of `CURVES`, pooled over all sites' test samples unless the name says otherwise; and `CLOCK`.
    sites : float64[rounds] by site
        Accuracy on each site's own test part.
    samples : float64[rounds] by site
        Of that test part; NaN where it is not known.
    k : int
        Groups at the end.
    ari : float
        Adjusted Rand index of those groups and the kinds of the sites; NaN where sites do not differ in kind.
    sent, received : float
        Megabytes that a site sent and received over the whole run, mean over the sites.
    seconds, cpu_seconds : float
        What the run took.
    """

    cell: Cell
    curves: dict[str, NDArray[np.float64]]
    sites: dict[str, NDArray[np.float64]]
    samples: dict[str, NDArray[np.float64]]
    k: int
    ari: float
    sent: float
    received: float
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Spread:
    """Mean over the seeds and, from two seeds on, their standard deviation (n - 1)."""

    mean: float
    deviation: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of one value per seed."""
        array = np.array(values, np.float64)
        return Spread(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan)


@dataclass(frozen=True)
class Row:
    """One method in one table. Shares are between 0 and 1.

    Attributes
    ----------
    seeds
        Those that are finished.
    best_round
        The round, counted from 1, whose accuracy is highest in the mean over the seeds: the paper's protocol. None:
        all figures are of what sites made for themselves after the last round.
    best, final
        Figures at that round and at the last one, by metric.
    last_mean_of_sites, shared, held
        Mean over sites at the last round: of the models that sites are tested with, of those they share where that is
        another one, and of what each held right after its last training.
    worst_tenth
        Mean accuracy of the worst tenth of the sites at the best round.
    ari
        Adjusted Rand index of the groups and the kinds of the sites; NaN where there is no truth.
    better_alone, better_common
        Sites per seed that do better in Local, and under FedAvg, each at its own best round; None: not in the table.
    worse_off
        Those of `better_alone` that do so by more than noise: zero is outside the interval of the difference.
    p_value
        Wilcoxon signed-rank test over (site, seed) pairs against the reference row; None for that row itself.
    curve : float64[rounds]
        Mean of the sites by round, mean over the seeds.
    clock : float64[rounds]
        When each round closed on the virtual clock, mean over the seeds; NaN without one.
    chosen
        What validation chose for it, in words; empty: there was no choice.
    """

    label: str
    method: str
    seeds: tuple[int, ...]
    k: Spread
    ari: Spread
    best_round: int | None
    best: dict[str, Spread]
    final: dict[str, Spread]
    mean_of_sites: Spread
    last_mean_of_sites: Spread
    shared: Spread
    held: Spread
    worst_tenth: Spread
    better_alone: float | None
    worse_off: float | None
    better_common: float | None
    sites: int
    p_value: float | None
    sent: float
    received: float
    seconds: float
    cpu_seconds: float
    curve: NDArray[np.float64]
    clock: NDArray[np.float64]
    paper: tuple[float, ...] | None
    chosen: str


def read_outcome(cell: Cell) -> Outcome | None:
    """Read a finished run; None: it is not finished, or has no rounds."""
    folder = Path(cell.config.out)
    if not is_finished(folder, cell.config):
        return None
    summary = read_json(folder / run_directory.SUMMARY)
    log = read_events(folder)
    sent, received = _traffic(log)
    curves, sites, samples = _rounds(folder) if cell.config.personalise == "none" else _personalised(summary)
    if not len(curves["accuracy"]):
        return None
    closed = {event.round_number: event.seconds for event in log.of(RoundClosed) if event.seconds is not None}
    tested = curves.pop(_ROUND, np.empty(0))
    curves[CLOCK] = np.array([closed.get(int(number), math.nan) for number in tested])
    ari = float(summary.get("ari", math.nan))
    return Outcome(cell, curves, sites, samples, int(summary["k"]), ari, sent, received, **read_cost(folder))


def _rounds(folder: Path) -> tuple[Curves, Curves, Curves]:
    """Read the figures of every round, over all sites and by site, and each site's test samples."""
    curves: dict[str, list[float]] = {name: [] for name in (*CURVES, _ROUND)}
    sites: defaultdict[str, dict[int, float]] = defaultdict(dict)
    samples: defaultdict[str, dict[int, float]] = defaultdict(dict)
    with (folder / run_directory.METRICS).open(newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            if row["scope"] == "overall":
                for name, values in curves.items():
                    values.append(_number(row.get(name) or ""))
            elif row["scope"] == "site":
                sites[row["name"]][int(row["round"])] = _number(row["accuracy"])
                samples[row["name"]][int(row["round"])] = _number(row["samples"])
    rounds = range(1, len(curves["accuracy"]) + 1)
    by_site, tested = (
        {
            name: np.array([by_round.get(number, math.nan) for number in rounds])
            for name, by_round in sorted(found.items())
        }
        for found in (sites, samples)
    )
    return {name: np.array(values) for name, values in curves.items()}, by_site, tested


def _personalised(summary: dict[str, Any]) -> tuple[Curves, Curves, Curves]:
    """Read what the last step came to, as if it were a run of one round."""
    found = summary.get("personalised")
    if found is None:
        return {name: np.empty(0) for name in CURVES}, {}, {}
    curves = {name: np.array([math.nan if found.get(name) is None else found[name]]) for name in CURVES}
    return (
        curves,
        {name: np.array([entry["accuracy"]], np.float64) for name, entry in found["sites"].items()},
        {name: np.array([entry.get("samples", math.nan)], np.float64) for name, entry in found["sites"].items()},
    )


def _number(text: str) -> float:
    return float(text) if text else math.nan


def _traffic(log: EventLog) -> tuple[float, float]:
    """Megabytes that a site sent and received, mean over the sites, from the log."""
    sent: defaultdict[str, int] = defaultdict(int)
    received: defaultdict[str, int] = defaultdict(int)
    for reply in log.of(ReplyAccepted):
        # The log speaks as the server does.
        sent[reply.site] += reply.bytes_received
        received[reply.site] += reply.bytes_sent
    count = max(len(sent), 1)
    return sum(sent.values()) / count / _MEGABYTE, sum(received.values()) / count / _MEGABYTE


def best_round(outcomes: Sequence[Outcome]) -> int:
    """Index of the round whose accuracy is highest in the mean over the seeds; the first one on a tie."""
    return int(np.nanargmax(np.mean([outcome.curves["accuracy"] for outcome in outcomes], axis=0)))


def rows(outcomes: Sequence[Outcome], reference: str) -> Iterator[Row]:
    """Yield the rows of one table (one data set, one setting) in the order in which methods first appear."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.cell.label, []).append(outcome)
    at_best = {label: _sites_at(group, best_round(group)) for label, group in grouped.items()}
    opponents: dict[str, str] = {}
    for label, group in grouped.items():
        if group[0].cell.config.personalise == "none":
            opponents.setdefault(group[0].cell.config.method, label)
    for label, group in grouped.items():
        place = best_round(group)
        own = at_best[label]
        yield Row(
            label=label,
            method=group[0].cell.config.method,
            seeds=tuple(outcome.cell.seed for outcome in group),
            k=Spread.of([outcome.k for outcome in group]),
            ari=Spread.of([outcome.ari for outcome in group]),
            best_round=place + 1 if group[0].cell.config.personalise == "none" else None,
            best={name: Spread.of([outcome.curves[name][place] for outcome in group]) for name in METRICS},
            final={name: Spread.of([outcome.curves[name][-1] for outcome in group]) for name in METRICS},
            mean_of_sites=Spread.of([outcome.curves["mean_site_accuracy"][place] for outcome in group]),
            last_mean_of_sites=Spread.of([outcome.curves["mean_site_accuracy"][-1] for outcome in group]),
            shared=Spread.of([outcome.curves[BESIDE[0]][-1] for outcome in group]),
            held=Spread.of([outcome.curves[BESIDE[1]][-1] for outcome in group]),
            worst_tenth=Spread.of([outcome.curves["worst_tenth_accuracy"][place] for outcome in group]),
            better_alone=_better(own, at_best.get(opponents.get(ALONE, ""))),
            worse_off=_worse_off(own, at_best.get(opponents.get(ALONE, ""))),
            better_common=_better(own, at_best.get(opponents.get(COMMON, ""))),
            sites=len(group[0].sites),
            p_value=None if label == reference else _p_value(own, at_best.get(reference)),
            sent=float(np.mean([outcome.sent for outcome in group])),
            received=float(np.mean([outcome.received for outcome in group])),
            seconds=float(np.mean([outcome.seconds for outcome in group])),
            cpu_seconds=float(np.mean([outcome.cpu_seconds for outcome in group])),
            curve=np.mean([outcome.curves["mean_site_accuracy"] for outcome in group], axis=0),
            clock=np.mean([outcome.curves[CLOCK] for outcome in group], axis=0),
            paper=group[0].cell.paper,
            chosen=group[0].cell.candidate,
        )


def rounds_to_reach(row: Row, goal: Row) -> int | None:
    """The first round, counted from 1, whose mean of the sites is that of the goal's last round; None: never."""
    reached = np.flatnonzero(row.curve >= goal.last_mean_of_sites.mean)
    return int(reached[0]) + 1 if len(reached) else None


def seconds_to_reach(row: Row, goal: Row) -> float:
    """When that round closed on the virtual clock; NaN: never, or there is none."""
    reached = rounds_to_reach(row, goal)
    return math.nan if reached is None or not len(row.clock) else float(row.clock[reached - 1])


@dataclass(frozen=True)
class Tested:
    """One site in one round: its accuracy, and on how many samples; NaN if that is not known."""

    accuracy: float
    samples: float

    @property
    def hits(self) -> float:
        """Samples that were classified correctly."""
        return float(round(self.accuracy * self.samples))


Pairs = dict[tuple[int, str], Tested]


def _sites_at(outcomes: Sequence[Outcome], place: int) -> Pairs:
    """What is known by (seed, site) at a round, where the accuracy is defined."""
    return {
        (outcome.cell.seed, site): Tested(float(values[place]), float(outcome.samples[site][place]))
        for outcome in outcomes
        for site, values in outcome.sites.items()
        if math.isfinite(values[place])
    }


def _better(own: Pairs, other: Pairs | None) -> float | None:
    """Sites per seed that do better elsewhere; seeds that the other has not finished do not count."""
    if other is None or other is own:
        return None
    shared = own.keys() & other.keys()
    seeds = {seed for seed, _ in shared}
    return sum(other[key].accuracy > own[key].accuracy for key in shared) / len(seeds) if seeds else None


def _worse_off(own: Pairs, alone: Pairs | None) -> float | None:
    """Sites per seed that do better alone by more than noise; None also where their test samples are not known."""
    if alone is None or alone is own:
        return None
    shared = [key for key in own.keys() & alone.keys() if math.isfinite(own[key].samples + alone[key].samples)]
    seeds = {seed for seed, _ in shared}
    worse = 0
    for key in shared:
        one, other = own[key], alone[key]
        worse += judged(*newcombe(one.hits, one.samples, other.hits, other.samples)) == "better alone"
    return worse / len(seeds) if seeds else None


def _p_value(own: Pairs, reference: Pairs | None) -> float | None:
    """Two-sided Wilcoxon signed-rank test of the pairs that both have; None if there are none, 1 if none differs."""
    if reference is None:
        return None
    shared = sorted(own.keys() & reference.keys())
    differences = np.array([own[key].accuracy - reference[key].accuracy for key in shared])
    if not len(differences):
        return None
    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0
