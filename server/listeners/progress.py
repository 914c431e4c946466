"""The display of a running job: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.config import Config
from common.naming import beside_naming
from common.readable import duration, megabytes
from common.site_card import SiteCard
from server.history.chance_words import shares_in_the_softmax
from server.history.events import (
    CheckpointFailed,
    Event,
    GroupKept,
    GroupRetired,
    GroupsFormed,
    Listener,
    MemoryLost,
    RehearsalDone,
    RehearsalStarted,
    ReplyAccepted,
    RoundClosed,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunResumed,
    RunStarted,
    SiteCleared,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    SitesMoved,
    SitesPersonalised,
    Solved,
    Solving,
    StageStarted,
)
from server.history.run_directory import CHECKPOINTS
from server.migration import Evidence

_STAGES = {
    "enrol": "getting to know the sites",
    "rehearse": "rehearsing",
    "agree": "agreeing on masks",
    "train": "training",
    "open": "opening the sums",
    "group": "grouping the sites",
    "confirm": "examining suspects",
    "evaluate": "testing",
    "personalise": "making models of their own",
    "solve": "training at the server",
    "keep": "handing out the final models",
}
_SHOWN_INCIDENTS = 5
_SIGN_OF_LIFE = 10.0  # seconds
_SHOWN_GROUPS = 12


def progress(directory: Path) -> Listener:
    """Choose the display that fits where the output goes."""
    return LiveProgress(directory) if sys.stdout.isatty() else PlainProgress(directory)


class _Clock:
    """Time left, from the mean duration of the rounds so far."""

    def __init__(self) -> None:
        self._start = self._first_round = time.monotonic()
        self.rounds = 0
        self.done = self._before = 0

    def finish(self, round_number: int) -> None:
        # A round is told of when it is trained and when it is tested, which may be after the next began.
        self.done = max(self.done, round_number)

    def begin_rounds(self) -> None:
        self._first_round = time.monotonic()

    def resume(self, rounds: int, done: int) -> None:
        self.rounds, self.done, self._before = rounds, done, done
        self.begin_rounds()

    @property
    def elapsed(self) -> str:
        return duration(time.monotonic() - self._start)

    @property
    def left(self) -> str:
        if self.done == self._before:
            return "?"
        mean = (time.monotonic() - self._first_round) / (self.done - self._before)
        return duration(mean * (self.rounds - self.done))


class PlainProgress:
    """One line per thing worth knowing, for logs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clock = _Clock()
        self._stage, self._asked, self._replied = "", 0, 0
        self._last_line = time.monotonic()
        self._of_table = False
        self._last: RoundFinished | None = None
        # Trained, and not tested so far.
        self._untested: RoundTrained | None = None

    def hear(self, event: Event) -> None:
        """Print what a person would want to read, and a sign of life when a stage takes long."""
        match event:
            case StageStarted(stage, _, sites):
                self._stage, self._asked, self._replied = _STAGES[stage], sites, 0
            case ReplyAccepted():
                self._replied += 1
            case Solving(share):
                self._replied = round(share * self._asked)
        line = self._line(event)
        if line is None and time.monotonic() - self._last_line > _SIGN_OF_LIFE:
            line = f"  {self._stage}: {self._replied} of {self._asked} sites, {self._clock.elapsed} since the start"
        if line is not None:
            print(line, flush=True)
            self._last_line = time.monotonic()

    def _line(self, event: Event) -> str | None:
        if (notice := _notice(event)) is not None:
            return notice
        match event:
            case RunStarted(config):
                self._clock.rounds, self._of_table = config.rounds, config.data.table is not None
                return f"{config.method}, seed {config.seed}, {config.rounds} rounds → {self._directory}"
            case RunResumed(config, _, round_number):
                self._clock.resume(config.rounds, round_number)
                self._of_table = config.data.table is not None
                return f"{config.method}, seed {config.seed}: goes on after round {round_number} → {self._directory}"
            case StageStarted("enrol", _, sites):
                return f"asking {sites} sites who they are"
            case SiteEnrolled(card, late) if late or card.fault_count:
                return f"site {card.name}: {card.train_samples} training samples{self._faults(card)}"
            case GroupsFormed():
                self._clock.begin_rounds()
                return _grouping(event)
            case RehearsalStarted() | RehearsalDone():
                return _rehearsal(event)
            case Solved():
                return _choice(event)
            case SitePlaced(_, site, group, confidence, fits):
                unlike = "" if fits else ": it fits nowhere, and this group is the nearest"
                return f"late site {site} joins group {group} (confidence {confidence:.2f}){unlike}"
            case GroupKept(round_number, group, replies, needed, reason):
                why = reason or f"{replies} of {needed} updates needed"
                return f"round {round_number}: group {group} keeps its model ({why})"
            case RoundTrained() | RoundFinished():
                self._last = event if isinstance(event, RoundFinished) else self._last
                return self._round(event)
            case RunEnded(outcome, reason):
                why = f": {reason}" if reason else ""
                warning = _warning(self._last)
                return f"{warning}\n" * bool(warning) + (
                    f"{outcome} after {self._clock.elapsed}{why}; {_where(outcome, self._directory)}"
                )
        return None

    def _faults(self, card: SiteCard) -> str:
        if not card.fault_count:
            return ""
        what = f"{card.fault_count} unusable files"
        if self._of_table:
            what = f"{card.fault_count} columns with values that were left out or stood in for"
        return f", {what}" + (f" ({'; '.join(card.faults[:3])})" if card.faults else "")

    def _round(self, event: RoundTrained | RoundFinished) -> str | None:
        self._clock.finish(event.round_number)
        before, place = self._untested, f"round {event.round_number}/{self._clock.rounds}"
        if isinstance(event, RoundTrained):
            self._untested = event
            # That a round is not tested is known when the next one is trained.
            return None if before is None else self._trained(before)
        if before is not None and before.round_number <= event.round_number:
            self._untested = None
        if not event.sites:
            return f"{place}: no site has been tested"
        groups = " ".join(f"{group}:{metrics.accuracy:.3f}" for group, metrics in event.groups.items())
        shown = f" groups {groups}" if 1 < len(event.groups) <= _SHOWN_GROUPS else ""
        others = "".join(
            f", {words} {one.accuracy:.3f} mean of sites {one.mean_site_accuracy:.3f}"
            for words, one in (("shared model", event.shared), ("after own training", event.held))
            if one is not None
        )
        return (
            f"{place}: accuracy {event.overall.accuracy:.3f} mean of sites {event.mean_site_accuracy:.3f} "
            f"worst tenth {event.worst_tenth_accuracy:.3f}{shown}{others}, {self._clock.left} left"
        )

    def _trained(self, event: RoundTrained) -> str:
        loss = f", loss {event.train_loss:.3g}" if math.isfinite(event.train_loss) else ""
        return f"round {event.round_number}/{self._clock.rounds}: trained{loss}, not tested, {self._clock.left} left"


class LiveProgress:
    """A panel that is redrawn in place."""

    def __init__(self, directory: Path, console: Console | None = None) -> None:
        self._directory = directory
        self._clock = _Clock()
        self._config: Config | None = None
        self._stage = "starting"
        self._round = 0
        self._replied = self._asked = 0
        self._sizes: Counter[int] = Counter()
        self._last: RoundFinished | None = None
        self._incidents: list[str] = []
        self._grouping = ""
        self._live = Live(console=console, refresh_per_second=4, transient=False, get_renderable=self._draw)

    def hear(self, event: Event) -> None:
        """Update what the panel shows."""
        if (notice := _notice(event)) is not None:
            self._incidents.append(notice)
        match event:
            case RunStarted(config):
                self._config, self._clock.rounds = config, config.rounds
                self._live.start()
            case RunResumed(config, _, round_number):
                self._config, self._grouping = config, f"goes on after round {round_number}"
                self._clock.resume(config.rounds, round_number)
                self._live.start()
            case StageStarted(stage, round_number, sites):
                self._stage, self._round, self._asked, self._replied = _STAGES[stage], round_number, sites, 0
            case ReplyAccepted():
                self._replied += 1
            case Solving(share):
                self._replied = round(share * self._asked)
            case Solved():
                self._incidents.append(_choice(event))
            case GroupsFormed():
                self._sizes = Counter(event.labels)
                self._grouping = _grouping(event)
                self._clock.begin_rounds()
            case RoundTrained():
                self._clock.finish(event.round_number)
                self._sizes = Counter(event.labels.values())
            case RoundFinished():
                self._clock.finish(event.round_number)
                self._last = event
                self._sizes = Counter(event.labels.values())
            case RunEnded(outcome, reason):
                self._stage = f"{outcome}{': ' + reason if reason else ''}"
                self._asked = 0
                self._incidents += [warning] if (warning := _warning(self._last)) else []
                self._grouping = "" if outcome == "finished" else _where(outcome, self._directory)
                self._live.stop()

    def _draw(self) -> Group:
        config = self._config
        if config is None:
            return Group()
        head = Text.assemble(
            (config.method, "bold"),
            f"  seed {config.seed}  round {self._round}/{config.rounds}  ",
            (self._stage, "cyan"),
            f"  {self._replied}/{self._asked} sites" if self._asked else "",
            f"  elapsed {self._clock.elapsed}  left {self._clock.left}",
        )
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(config.rounds, 1), completed=self._clock.done, width=60))
        parts: list[RenderableType] = [head, bar]
        if self._grouping:
            parts.append(Text(self._grouping, style="dim"))
        if self._last:
            parts.append(self._table(self._last))
        parts += [Text.from_markup(f"[yellow]{escape(line)}[/]") for line in self._incidents[-_SHOWN_INCIDENTS:]]
        if len(self._incidents) > _SHOWN_INCIDENTS:
            parts.append(Text(f"… {len(self._incidents)} incidents in all, see events.jsonl", style="yellow"))
        parts.append(Text(str(self._directory), style="dim"))
        return Group(*parts)

    def _table(self, event: RoundFinished) -> Table:
        table = Table("group", "sites", "accuracy", "macro-F1", "AUC", box=None, header_style="bold")
        for group, metrics in list(event.groups.items())[:_SHOWN_GROUPS]:
            figures = (f"{metrics.accuracy:.3f}", f"{metrics.macro_f1:.3f}", f"{metrics.auc:.3f}")
            table.add_row(str(group), str(self._sizes[group]), *figures)
        if len(event.groups) > _SHOWN_GROUPS:
            table.add_row("…", "", "", "", "")
        overall = event.overall
        table.add_row(
            "all", str(len(event.sites)), f"{overall.accuracy:.3f}", f"{overall.macro_f1:.3f}", f"{overall.auc:.3f}",
            style="bold",
        )  # fmt: skip
        return table


def _warning(event: RoundFinished | None) -> str:
    """What to say in the end of models that have learnt no more than which class is frequent; empty: nothing."""
    beside = None if event is None else beside_naming(event.sites.values())
    if beside is None or beside.verdict == "better":
        return ""
    return (
        f"WARNING: {beside.words}. Do not rely on these models yet: more rounds, another rate or network "
        "(`coterie init` recommends some), or more data"
    )


def _where(outcome: str, directory: Path) -> str:
    """Where the run is, and how it goes on, if it can."""
    goes_on = outcome != "finished" and (directory / CHECKPOINTS).is_dir()
    hint = f"; the same command with --resume --out {directory} goes on after the last complete round"
    return f"run directory {directory}{hint * goes_on}"


def _notice(event: Event) -> str | None:
    """What a person should be told even when nothing else changes on the screen."""
    match event:
        case SiteLeftOut():
            return f"round {event.round_number}, {event.stage}: {event.site} left out: {event.reason}"
        case SitesMoved():
            return _move(event)
        case SiteCleared():
            verdict = f"site {event.site} stays in group {event.group} after an examination"
            return f"round {event.round_number}: {verdict} ({_figures(event.evidence)})"
        case MemoryLost():
            return (
                f"round {event.round_number}: site {event.site} no longer has what it remembered of the run and "
                "starts fresh"
            )
        case SitesPersonalised():
            kept = ", ".join(f"{count} {what}" for what, count in sorted(Counter(event.kept.values()).items()))
            return (
                f"personalised ({event.mode}): accuracy {event.overall.accuracy:.3f} mean of sites "
                f"{event.mean_site_accuracy:.3f} worst tenth {event.worst_tenth_accuracy:.3f}; sites keep: {kept}"
            )
        case RoundClosed(late=late, taken=taken) if late or taken:
            return _closed(event)
        case GroupRetired():
            return f"round {event.round_number}: nobody is left in group {event.group}"
        case CheckpointFailed():
            return f"round {event.round_number}: no checkpoint ({event.reason}); make room, the run goes on"
    return None


def _closed(event: RoundClosed) -> str:
    at = "" if event.seconds is None else f" at {duration(event.seconds)} of the virtual clock"
    late = f", {len(event.late)} sites are late" if event.late else ""
    taken = f", {len(event.taken)} late updates of earlier rounds have entered it" if event.taken else ""
    return f"round {event.round_number}: closed{at}{late}{taken}"


def _move(event: SitesMoved) -> str:
    one = len(event.sites) == 1
    who = f"site {event.sites[0]}" if one else f"{len(event.sites)} sites"
    # Sites are moved by an examination, and go by a rule of the method's own or by choice.
    examined = not event.evidence.reason
    verb = ("moves" if one else "move") if examined else ("goes" if one else "go")
    where = f"{'a new group' if event.founded else 'group'} {event.target}"
    why = _figures(event.evidence) if examined else event.evidence.reason
    return f"round {event.round_number}: {who} {verb} from group {event.origin} to {where} ({why})"


def _figures(evidence: Evidence) -> str:
    reasons = [] if evidence.changed is None else [f"data changed by {evidence.changed:.1f} standard deviations"]
    reasons += [] if evidence.cosine is None else [f"cosine {evidence.cosine:.2f}"]
    usual = evidence.usual_norm if evidence.peer_norm is None else evidence.peer_norm
    if evidence.norm is not None and usual is not None:
        reasons.append(f"norm {evidence.norm:.3g} against {usual:.3g}")
    return ", ".join(reasons) or "no reference"


def _choice(event: Solved) -> str:
    """What validation chose, and how well the sites' anchors could be inverted."""
    known = [condition for condition in event.conditions.values() if math.isfinite(condition)]
    text = f"threshold {event.threshold:g} and layers of {event.hidden[0]} and {event.hidden[1]} chosen by validation"
    text += f" ({max(event.validation.values()):.3f})" if event.validation else ""
    text += f"; condition of the anchors up to {max(known):.3g}" if known else ""
    poor = len(event.conditions) - len(known)
    return text + (f"; {poor} sites of lower rank than they have dimensions" if poor else "")


def _rehearsal(event: RehearsalStarted | RehearsalDone) -> str:
    if isinstance(event, RehearsalStarted):
        return (
            f"rehearsal of {', '.join(map(str, event.ks))} groups in {event.rounds} rounds and {event.folds} folds: at "
            f"most {megabytes(event.bytes_each_way)} to and from a site, at least {duration(event.seconds)}"
        )
    outcome = event.outcome
    losses = ", ".join(f"{k}: {loss:.3f}" for k, loss in zip(outcome.ks, outcome.losses, strict=True))
    return f"log loss by number of groups: {losses}; {outcome.k} chosen (by silhouette {event.by_silhouette})"


def _grouping(event: GroupsFormed) -> str:
    sizes = Counter(event.labels)
    text = f"{len(event.labels)} sites in {len(sizes)} group{'s' if len(sizes) > 1 else ''}"
    if 1 < len(sizes) <= _SHOWN_GROUPS:
        text += " of " + ", ".join(str(sizes[group]) for group in sorted(sizes))
    if event.k_scores is None:
        return text
    if event.chance is not None and not event.chance.ruled_out and len(sizes) == 1:
        return f"{text}; the sites differ no more than chance"
    if event.chance is not None and not event.chance.speaks_for_groups and len(sizes) == 1:
        return f"{text}; {shares_in_the_softmax(event.chance)}"
    if event.cv == 0:
        return f"{text}; all distances are equal"
    if len(sizes) in event.k_scores:
        return f"{text}; K chosen by silhouette {event.k_scores[len(sizes)]:.2f} (CV {event.cv:.2f})"
    window = event.k_window or ()
    text += f"; no K of {window[0]} to {window[-1]} stands out (CV {event.cv:.2f}), the best silhouette of all decides"
    return text
