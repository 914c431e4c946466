"""What happens in a run, as values. The strategy tells; listeners hear and change nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.metrics import Metrics, site_spread
from common.site_card import SiteCard, Spending
from common.state import State
from server.clustering import Chance, GroupDifference, Rehearsed
from server.migration import Evidence

Stage = Literal[
    "enrol", "rehearse", "agree", "train", "open", "group", "confirm", "evaluate", "personalise", "solve", "keep"
]


@dataclass(frozen=True)
class RunStarted:
    """The settings are valid and the run begins. `stamp` tells it from every other run, and stays when it goes on."""

    config: Config
    stamp: str = ""


@dataclass(frozen=True)
class RunResumed:
    """A run that had ended too early goes on after its last checkpoint, which was taken after `round_number`.

    Later rounds are done again, and so are the tests of that round: a round is tested in the exchange of the next one.
    """

    config: Config
    stamp: str
    round_number: int
    cards: tuple[SiteCard, ...]
    labels: dict[str, int]
    models: dict[int, State]


@dataclass(frozen=True)
class CheckpointFailed:
    """The state after a round could not be written; the run goes on, with the checkpoint before it."""

    round_number: int
    reason: str


@dataclass(frozen=True)
class StageStarted:
    """Sites are being asked for something."""

    stage: Stage
    round_number: int
    sites: int


@dataclass(frozen=True)
class ReplyAccepted:
    """A site's answer arrived and passed the screening. `spending`: of its privacy budget so far, if it says so."""

    stage: Stage
    round_number: int
    site: str
    bytes_sent: int
    bytes_received: int
    seconds: float
    spending: Spending | None = None


@dataclass(frozen=True)
class SiteLeftOut:
    """A site failed, was late, or sent something that was rejected; it is left out of this stage."""

    stage: Stage
    round_number: int
    site: str
    reason: str


@dataclass(frozen=True)
class SiteEnrolled:
    """A site introduced itself."""

    card: SiteCard
    late: bool


@dataclass(frozen=True)
class SiteRenewed:
    """A site was asked anew, because its data changed, and has another card now."""

    card: SiteCard


@dataclass(frozen=True)
class GroupsFormed:
    """Sites were grouped. `labels[i]` is the group of `sites[i]`; `chance`: whether they differ by more than that.

    `views` are similarities by name that decide nothing.
    """

    sites: tuple[str, ...]
    labels: tuple[int, ...]
    distance: NDArray[np.float64] | None
    k_scores: dict[int, float] | None
    k_window: tuple[int, ...] | None
    cv: float | None
    chance: Chance | None = None
    views: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class RehearsalStarted:
    """Heads will be trained for these numbers of groups: what that costs the site that gets the most, about."""

    ks: tuple[int, ...]
    rounds: int
    folds: int
    bytes_each_way: int
    seconds: float


@dataclass(frozen=True)
class RehearsalDone:
    """What every number of groups would bring; `by_silhouette` is the number that the silhouette would choose."""

    outcome: Rehearsed
    by_silhouette: int


@dataclass(frozen=True)
class GroupsCompared:
    """What kind of difference is between the groups that were formed, pair by pair."""

    pairs: tuple[GroupDifference, ...]


@dataclass(frozen=True)
class Solving:
    """The server is training the groups' models; a share of that is done."""

    share: float


@dataclass(frozen=True)
class Solved:
    """The groups' models were trained at the server (DC-CFL).

    Attributes
    ----------
    threshold, hidden
        What validation chose.
    validation
        Accuracy on the rows held out, by candidate: threshold and widths of the layers.
    groups
        How many there are at each threshold.
    ranks, conditions
        Of each site's anchors; a condition is infinite where they have not full rank.
    """

    threshold: float
    hidden: tuple[int, int]
    validation: dict[str, float]
    ranks: dict[str, int]
    conditions: dict[str, float]
    groups: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SitePlaced:
    """A late site was put into a group by its fingerprint; `fits` false: the nearest one, which it is unlike."""

    round_number: int
    site: str
    group: int
    confidence: float
    fits: bool = True


@dataclass(frozen=True)
class GroupKept:
    """A group had too few usable updates in a round and keeps its model; `reason`: why, if there is more to say."""

    round_number: int
    group: int
    replies: int
    needed: int
    reason: str = ""


@dataclass(frozen=True)
class SitesMoved:
    """Sites went from one group to another; `founded`: the target is a new group.

    The evidence has the figures of an examination, or only the reason: the method's own rule, or the sites' choice.
    """

    round_number: int
    sites: tuple[str, ...]
    origin: int
    target: int
    founded: bool
    evidence: Evidence


@dataclass(frozen=True)
class SiteCleared:
    """A site under suspicion was examined and stays in its group."""

    round_number: int
    site: str
    group: int
    evidence: Evidence


@dataclass(frozen=True)
class GroupRetired:
    """Nobody belongs to a group any more; its model is no longer trained."""

    round_number: int
    group: int


@dataclass(frozen=True)
class MemoryLost:
    """A site no longer has what it remembered of the run and starts fresh."""

    round_number: int
    site: str


@dataclass(frozen=True)
class RoundClosed:
    """A round no longer waits for answers. Told where it need not wait for all, or where there is a virtual clock.

    Attributes
    ----------
    late
        Sites that were asked, and not waited for.
    busy
        Sites that were not asked, because they still owe the answer to an earlier round.
    taken
        Sites whose late update of an earlier round entered this one, and that round.
    seconds
        When it closed, on the virtual clock of a simulation.
    """

    round_number: int
    late: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    taken: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True)
class RoundTrained:
    """The training of a round is closed, whether its models will be tested or not."""

    round_number: int
    train_loss: float
    labels: dict[str, int]
    models: dict[int, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Beside:
    """The accuracy of other models than those that a round is tested with: pooled, and at each site."""

    accuracy: float
    sites: dict[str, float]

    @property
    def mean_site_accuracy(self) -> float:
        """The mean over sites; NaN for none."""
        return site_spread(list(self.sites.values()))[0]


@dataclass(frozen=True)
class RoundFinished:
    """The models of a round have been tested: everything measured on the sites' own test splits.

    The training of the next round may have begun by then. `shared`: of the models that sites share, where each is
    tested with one of its own. `held`: of what each site held right after its last training, if that was asked for.
    `confusions` holds for each site the cells of its confusion
    matrix that are not empty, int64[m, 3]: true class, predicted class, samples. `scores` holds for each group the
    histograms of its scores, int64[2, C, BINS], as `EvaluationStatistics` has them.
    """

    round_number: int
    overall: Metrics
    groups: dict[int, Metrics]
    sites: dict[str, Metrics]
    labels: dict[str, int]
    mean_site_accuracy: float
    worst_tenth_accuracy: float
    train_loss: float
    models: dict[int, State]
    shared: Beside | None = None
    held: Beside | None = None
    confusions: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    scores: dict[int, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class SitesPersonalised:
    """After the last round sites made models of their own; measured on their own test splits as a round is.

    `kept` says what each site keeps: its group's model ("group"), that model trained further on its own data
    ("finetuned"), one trained on its own data alone ("local"), or the first together with one of those ("blend").
    """

    mode: str
    kept: dict[str, str]
    overall: Metrics
    sites: dict[str, Metrics]
    mean_site_accuracy: float
    worst_tenth_accuracy: float


@dataclass(frozen=True)
class ModelKept:
    """A site has its final model on its own disk."""

    site: str


@dataclass(frozen=True)
class RunEnded:
    """The run is over: finished, interrupted by the operator, or failed."""

    outcome: Literal["finished", "interrupted", "failed"]
    reason: str


Event = (
    RunStarted
    | RunResumed
    | CheckpointFailed
    | StageStarted
    | ReplyAccepted
    | SiteLeftOut
    | SiteEnrolled
    | SiteRenewed
    | GroupsFormed
    | GroupsCompared
    | RehearsalStarted
    | RehearsalDone
    | Solving
    | Solved
    | SitePlaced
    | GroupKept
    | SitesMoved
    | SiteCleared
    | GroupRetired
    | MemoryLost
    | RoundClosed
    | RoundTrained
    | RoundFinished
    | SitesPersonalised
    | ModelKept
    | RunEnded
)


class Listener(Protocol):
    """Hears every event, in order, on the thread of the run."""

    def hear(self, event: Event) -> None:
        """Take note of `event`."""


@runtime_checkable
class Recorder(Protocol):
    """A listener whose record a resumed run depends on."""

    def sync(self) -> None:
        """Have everything that was told on disk, or raise an OSError."""


class Audience:
    """All listeners of a run. One that fails is reported and dismissed; the run goes on.

    One that cannot write stays: a disk that is full now may have room when there is more to tell.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)
        # Recorders that were dismissed: their record ends there.
        self._lost: list[str] = []

    def tell(self, event: Event) -> None:
        """Tell every listener."""
        for listener in list(self._listeners):
            try:
                listener.hear(event)
            except OSError as error:
                logging.getLogger("coterie").error("%s cannot write: %s; make room", type(listener).__name__, error)
            except Exception:
                self._listeners.remove(listener)
                if isinstance(listener, Recorder):
                    self._lost.append(type(listener).__name__)
                logging.getLogger("coterie").exception("%s failed and is switched off", type(listener).__name__)

    def sync(self) -> None:
        """Have all that was told on disk; an OSError says which record is behind."""
        if self._lost:
            raise OSError(f"{self._lost[0]} is switched off")
        for listener in self._listeners:
            if isinstance(listener, Recorder):
                listener.sync()
