"""A run as its directory tells it, finished or still growing.

Whatever is missing or damaged is left out and named in `notes`: a page about half a run is better than none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.classes import KNOWN
from common.config import ClusterSettings, SettingsError
from common.foreign import read_archive, read_array, read_json
from common.metrics import Metrics
from common.site_card import SiteCard, Spending
from server.clustering import GroupDifference, adjusted_rand_index
from server.clustering.distances import checked_distance
from server.history import run_directory
from server.history.event_log import EventLog, Logged, read_events
from server.history.events import (
    CheckpointFailed,
    Event,
    GroupKept,
    GroupRetired,
    GroupsCompared,
    GroupsFormed,
    MemoryLost,
    ModelKept,
    RehearsalDone,
    ReplyAccepted,
    RoundClosed,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunResumed,
    RunStarted,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    SiteRenewed,
    SitesPersonalised,
    Solved,
    StageStarted,
)
from server.history.ledger import Ruling, rulings
from server.methods import METHODS, Method
from server.methods.fedcm import VIEWS
from server.report.compared import Grouping, drawn, part_of
from server.report.confusions import Confusion, read_confusions
from server.report.counts_file import UnusableCounts
from server.report.scores import read_scores

Name = TypeVar("Name")

_NAMED = 5  # of those who were late


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


@dataclass(frozen=True)
class Noted:
    """What a site's own ledger has of a run: answers that left, their bytes, questions it declined, and its last line.

    `head` is the digest of the ledger's last line: who compares it with the site's sees that these are the same lines.
    """

    answers: int
    bytes: int
    declined: int
    head: str


@dataclass
class RunRecord:
    """Everything a page shows of a run."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "running"
    reason: str = ""
    cards: dict[str, SiteCard] = field(default_factory=dict)
    grouping: Grouping | None = None
    places: NDArray[np.int64] | None = None  # in the grouping, of the sites that are compared; None: of all
    distance: NDArray[np.float64] | None = None  # between those
    views: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # similarities of the same, by name
    differences: tuple[GroupDifference, ...] = ()  # of every two groups as they were formed
    rehearsal: RehearsalDone | None = None
    placed: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # round, group, confidence
    strangers: set[str] = field(default_factory=set)  # late sites that fit nowhere
    rounds: list[RoundFinished] = field(default_factory=list)  # those that were tested
    trained: int = 0  # rounds
    clock: dict[int, float] = field(default_factory=dict)  # round → when it closed, in virtual seconds
    trained_labels: dict[str, int] = field(default_factory=dict)  # after the last round that was trained
    personalised: SitesPersonalised | None = None
    solved: Solved | None = None
    rulings: list[Ruling] = field(default_factory=list)
    retired: dict[int, int] = field(default_factory=dict)  # group → round since which nobody is in it
    incidents: list[Incident] = field(default_factory=list)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)  # site → stage
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    kept: set[str] = field(default_factory=set)  # sites that have their final model on their own disk
    confusions: dict[str, Confusion] = field(default_factory=dict)  # by site, of the last round that was tested
    scores: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # histograms by group, of the same round
    spending: dict[str, Spending] = field(default_factory=dict)  # of privacy budgets, as sites told last
    noted: dict[str, Noted] = field(default_factory=dict)  # by sites whose ledgers are at hand, by themselves
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
            chosen = {} if self.solved is None else {"threshold": self.solved.threshold}
            return ClusterSettings.model_validate(dict(self.config.get("cluster", {})) | chosen, strict=False)
        except (TypeError, ValueError):
            return ClusterSettings()

    @property
    def seed(self) -> int:
        """Of the run; 0 if it cannot be read."""
        return seed if isinstance(seed := self.config.get("seed"), int) and seed >= 0 else 0

    @property
    def compared(self) -> Grouping | None:
        """The grouping of the sites that are compared: of all, or of some of very many."""
        if self.grouping is None or self.places is None:
            return self.grouping
        return part_of(self.grouping, self.places)

    @property
    def planned_rounds(self) -> int:
        """How many rounds the run was to have."""
        return rounds if isinstance(rounds := self.config.get("rounds"), int) else 0

    @property
    def last(self) -> RoundFinished | None:
        """The last round that was tested."""
        return self.rounds[-1] if self.rounds else None

    @property
    def labels(self) -> dict[str, int]:
        """The group of every site, as far as is known now."""
        first = (
            {} if self.grouping is None else dict(zip(self.grouping.sites, self.grouping.labels.tolist(), strict=True))
        )
        first |= {site: group for site, (_, group, _) in self.placed.items()}
        for known in (self.last.labels if self.last else {}, self.trained_labels):
            first |= known
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
    def agreement(self) -> float | None:
        """Adjusted Rand index of the groups with the truth, where a simulated world has one."""
        truth, labels = self.about.get("truth"), self.labels
        if not isinstance(truth, Mapping):
            return None
        sites = sorted(site for site in labels if isinstance(truth.get(site), int | str))
        if len(sites) < 2:
            return None
        return adjusted_rand_index([labels[site] for site in sites], [str(truth[site]) for site in sites])

    @property
    def moves(self) -> list[Ruling]:
        """The rulings that changed a site's group."""
        return [ruling for ruling in self.rulings if not ruling.stays]


def accuracies(metrics: Mapping[Name, Metrics]) -> dict[Name, float]:
    """The accuracy of each group or site; NaN where it is not known."""
    return {name: one.accuracy for name, one in metrics.items()}


def figures_of(tested: RoundFinished | SitesPersonalised) -> tuple[float, ...]:
    """Accuracy, macro-F1 and AUC over all test samples, and the accuracy of the mean site and the worst tenth."""
    overall = tested.overall
    return (
        overall.accuracy, overall.macro_f1, overall.auc, tested.mean_site_accuracy, tested.worst_tenth_accuracy
    )  # fmt: skip


def read_run(directory: Path) -> RunRecord:
    """Read a run directory, or raise `SettingsError` if it is not one."""
    record = RunRecord(directory.resolve().name)
    log = _read_log(directory)
    try:
        about = read_json(directory / run_directory.RUN)
        record.config, record.about = _settings_in(about["config"]), about
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        record.notes.append(f"{run_directory.RUN} is missing or damaged; settings are taken from the log.")
    clock = _Clock(record.seconds)
    for entry in log.entries:
        clock.hear(entry)
        _take(record, entry.event)
    record.rulings = rulings(log.events)
    if log.unreadable:
        record.notes.append(
            f"{log.unreadable} lines of {run_directory.EVENTS} could not be understood and are left out."
        )
    if not log.entries:
        record.notes.append("Nothing has happened yet in this run.")
    _drop_odd_cards(record)
    _compare(record, directory)
    _read_counts(record, directory)
    return record


def _drop_odd_cards(record: RunRecord) -> None:
    """Leave out cards with counts of more or fewer classes than most: such sites are in no run."""
    widths = Counter(len(card.class_counts) for card in record.cards.values())
    for name, card in list(record.cards.items()):
        if len(card.class_counts) != widths.most_common(1)[0][0]:
            del record.cards[name]
            record.notes.append(f"What site {name} said of itself is damaged and left out: it counts other classes.")


def _settings_in(config: Any) -> dict[str, Any]:
    """The settings of a run as its directory has them, perhaps of another version; raises if it has none."""
    sections = [config, *(config.get(name, {}) for name in ("data", "migration", "aggregate"))]
    data = sections[1]
    if not all(isinstance(section, Mapping) for section in sections):
        raise TypeError("a section is no table")
    if not all(isinstance(data.get(key) or "", str) for key in ("name", "source")):
        raise TypeError("a data set is known by its name")
    if not isinstance(data.get("classes") or [], list):
        raise TypeError("classes are a list")
    return dict(config)


def _read_log(directory: Path) -> EventLog:
    try:
        log = read_events(directory)
    except OSError as error:
        raise SettingsError(f"cannot read {error.filename}: {error.strerror}; RUN is the directory of a run") from None
    if log.unreadable and not log.entries:
        raise SettingsError(f"{directory / run_directory.EVENTS} is not the log of a run of this version")
    return log


class _Clock:
    """Adds up how long each stage took, by the times in the log; the gap before a resumption counts for nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._stage = "start"
        self._last: float | None = None

    def hear(self, entry: Logged) -> None:
        if isinstance(entry.event, RunResumed):
            self._last = None
        if self._last is not None and entry.time > self._last:
            self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + entry.time - self._last
        self._last = entry.time
        if isinstance(entry.event, StageStarted):
            self._stage = entry.event.stage


def _take(record: RunRecord, event: Event) -> None:
    match event:
        case RunStarted() | RunResumed():
            record.config = record.config or event.config.model_dump(mode="json")
            record.outcome, record.reason = "running", ""
            if isinstance(event, RunResumed):
                record.cards |= {card.name: card for card in event.cards}
        case SiteEnrolled(card) | SiteRenewed(card):
            record.cards[card.name] = card
        case GroupsFormed(sites, labels):
            record.grouping = Grouping(sites, np.array(labels, np.int64), event.k_window or (), event.cv, event.chance)
        case GroupsCompared(pairs):
            record.differences = pairs
        case RehearsalDone():
            record.rehearsal = event
        case SitePlaced(number, site, group, confidence, fits):
            record.placed[site] = (number, group, confidence)
            record.strangers |= set() if fits else {site}
        case ReplyAccepted():
            _add_traffic(record, event)
            record.spending |= {event.site: event.spending} if event.spending else {}
        case RunEnded(outcome, reason):
            record.outcome, record.reason = outcome, reason
        case _:
            _take_model(record, event)
            if incident := _incident(event):
                record.incidents.append(incident)


def _take_model(record: RunRecord, event: Event) -> None:
    """What became of a group's model, or of a site's own."""
    match event:
        case RoundClosed(number, seconds=float(seconds)):
            record.clock[number] = seconds
        case RoundTrained():
            record.trained, record.trained_labels = event.round_number, event.labels
        case RoundFinished():
            record.rounds.append(event)
            record.trained = max(record.trained, event.round_number)
        case Solved():
            record.solved = event
        case GroupRetired():
            record.retired[event.group] = event.round_number
        case SitesPersonalised():
            record.personalised = event
        case ModelKept(site):
            record.kept.add(site)


def _add_traffic(record: RunRecord, event: ReplyAccepted) -> None:
    entry = record.traffic.setdefault(event.site, {}).setdefault(event.stage, Traffic())
    entry.sent += event.bytes_sent
    entry.received += event.bytes_received
    entry.seconds += event.seconds
    entry.replies += 1


def _incident(event: Event) -> Incident | None:
    match event:
        case SiteLeftOut():
            return Incident(event.round_number, event.stage, event.site, event.reason)
        case MemoryLost():
            reason = "no longer has what it remembered of the run and starts fresh"
            return Incident(event.round_number, "train", event.site, reason)
        case RoundClosed(number, late) if late:
            some = ", ".join(late[:_NAMED]) + (f" and {len(late) - _NAMED} more" if len(late) > _NAMED else "")
            return Incident(number, "train", f"{len(late)} sites", f"were late: the round closed without {some}")
        case GroupKept(number, group, replies, needed, why):
            reason = f"kept its model: {why or f'{replies} of {needed} updates needed'}"
            return Incident(number, "train", f"group {group}", reason)
        case CheckpointFailed():
            return Incident(event.round_number, "checkpoint", "server", f"no checkpoint: {event.reason}")
    return None


def _compare(record: RunRecord, directory: Path) -> None:
    """Choose the sites that are compared, and read their distances."""
    if record.grouping is None:
        return
    record.places = places = drawn(record.grouping, record.seed)
    count = len(record.grouping.sites)
    if len(places) < count:
        record.notes.append(
            f"Map, distances, tree, silhouettes, how sure groups are: of {len(places):,} sites of {count:,}, drawn "
            "by lot. The grouping was made of all."
        )
    path = directory / run_directory.DISTANCES
    try:
        # From the disk: of very many sites few rows are needed.
        record.distance = checked_distance(_compared(read_array(path, mapped=True), count, places))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        record.notes.append(f"{path.name} cannot be used: {error}.")
    path = directory / run_directory.SIMILARITIES
    try:
        found, _ = read_archive(path, set(VIEWS))
        record.views = {name: _similarity(_compared(found[name], count, places)) for name in VIEWS if name in found}
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        record.notes.append(f"{path.name} cannot be used: {error}.")


def _compared(matrix: NDArray[Any], count: int, places: NDArray[np.int64]) -> NDArray[Any]:
    """The rows and columns of the sites that are compared."""
    if matrix.shape != (count, count):
        raise ValueError(f"it is {'×'.join(map(str, matrix.shape))} for {count} sites")
    return matrix[np.ix_(places, places)]


def _similarity(matrix: NDArray[Any]) -> NDArray[np.float64]:
    if matrix.dtype != np.float64 or not (np.abs(matrix) <= 1).all() or not np.array_equal(matrix, matrix.T):
        raise ValueError("its values are no cosines of pairs of sites")
    return matrix


def _read_counts(record: RunRecord, directory: Path) -> None:
    if record.last is None:
        return
    number, classes = record.last.round_number, len(record.classes)
    name = run_directory.CONFUSIONS
    try:
        record.confusions = read_confusions(directory, number, classes)
        name = run_directory.SCORES
        record.scores = read_scores(directory, number, classes)
    except UnusableCounts as error:
        record.notes.append(f"{name} cannot be used: {error}.")
