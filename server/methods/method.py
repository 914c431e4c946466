"""A method is a recipe: what sites send, how far apart they are, how they are grouped, how they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings, Config, FlatValue
from common.fingerprint import KINDS
from common.site_card import SiteCard
from server.clustering import Chance, KSelection
from server.methods.training import MakeGrouping, Placement, TrainingRule

Family = Literal["one model for all", "personal", "clustered before training", "clustered while training", "one round"]

# The rule of sites that train what they are sent and send it back.
PLAIN = "fedavg"


@dataclass(frozen=True)
class Grouping:
    """The outcome of a partition rule: `labels` 0..K−1 numbered by first member."""

    labels: NDArray[np.int64]
    selection: KSelection | None = None


class PartitionRule(Protocol):
    """Turns distances into groups, and later finds the place of a newcomer."""

    def form(
        self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings, chance: Chance | None = None
    ) -> Grouping:
        """Group `sites` sites; `distance` is float64[N, N] where the method has one.

        `chance` says whether they differ by more than chance, where their fingerprints tell.
        """

    def place(self, distance: NDArray[np.float64] | None, labels: NDArray[np.int64]) -> Placement:
        """Place a newcomer whose distances to the labelled sites are `distance` (float64[N])."""


class Described(Protocol):
    """A site as a distance sees it: its card, and a fingerprint of the one kind that the method asks for."""

    @property
    def card(self) -> SiteCard:
        """Who it is and how much data it has."""

    @property
    def fingerprint(self) -> Any:
        """What it said of its data."""


Distance = Callable[[Sequence[Described], Config], NDArray[np.float64]]
# By name, what else than the distance sites can be compared by: float64[N, N], 1 on the diagonal.
Views = Callable[[Sequence[Described]], Mapping[str, NDArray[np.float64]]]
# The members with their groups, and the newcomer.
Place = Callable[[Sequence[Described], NDArray[np.int64], Described, Config], Placement]
ChanceTest = Callable[[Sequence[Described], Config], Chance]


@dataclass(frozen=True)
class Method:
    """One row of a table of methods.

    Attributes
    ----------
    name, title, paper, summary
        What the user types, reads and cites; one sentence of help.
    about
        A paragraph for the documentation: when to use it, what it costs, what is wrong with it elsewhere.
    family
        Under which it is listed.
    partition
        From distances to groups.
    fingerprint
        What sites are asked for before training (`query.<fingerprint>`); None: only who they are.
    distance
        Distance matrix of the sites; None: the partition needs none.
    chance
        Tests whether the sites differ by more than chance; None: their fingerprints do not tell.
    appearance
        Distance matrix by which the guarded rule groups sites where only how classes look is a reason to; None:
        `distance`.
    views
        Similarities of the sites that are shown beside the distance, and decide nothing.
    place
        Finds the place of a newcomer by what the fingerprints tell of their own noise; None: `partition` does, by
        distance.
    fingerprint_needs_model
        Whether the query carries the model every site starts from.
    migration
        The rule by which sites change groups under `migration.rule = "auto"`.
    clustered
        Whether there are groups between which migration may move sites.
    rule
        What sites do in a round: the name of its file in `client/methods` and, where both sides must agree on
        something, in `common/methods`.
    training
        Makes the server's half of that rule, for one run.
    grouping
        Makes what groups sites while they train, for one run; None: the server's half of the rule does, if anybody.
        What it asks of sites is declared in `common/methods` under the method's name.
    settings
        Values that the recipe fixes, by flat key: they are what makes it this method and not another.
    settings_used
        Settings that this method listens to beyond those of every run, for the reader.
    needs_k
        Whether the number of groups must be given.
    check
        Refuses settings that contradict each other, with a `SettingsError`.
    """

    name: str
    title: str
    paper: str
    summary: str
    about: str
    family: Family
    partition: PartitionRule
    fingerprint: str | None = None
    distance: Distance | None = None
    chance: ChanceTest | None = None
    appearance: Distance | None = None
    views: Views | None = None
    place: Place | None = None
    fingerprint_needs_model: bool = False
    migration: Literal["off", "guarded"] = "off"
    clustered: bool = True
    rule: str = PLAIN
    training: type[TrainingRule] = TrainingRule
    grouping: MakeGrouping | None = None
    settings: Mapping[str, FlatValue] = field(default_factory=dict)
    settings_used: tuple[str, ...] = ()
    needs_k: bool = False
    check: Callable[[Config], None] = lambda config: None

    def variant(self, **changes: Any) -> Method:
        """The same recipe but for `changes`."""
        return replace(self, **changes)

    def grouped_by(self, chance: Chance | None, config: Config) -> Distance | None:
        """The distance by which sites are grouped, given what speaks for groups."""
        by_looks = config.cluster.rule == "guarded" and chance is not None and chance.only_means_count
        return self.appearance if by_looks and self.appearance else self.distance

    @property
    def one_round(self) -> bool:
        """Whether the server learns everything from what each site sends before training."""
        return self.family == "one round"

    @property
    def can_confirm(self) -> bool:
        """Whether a fresh fingerprint is cheap enough to ask a suspect for: it costs the site no training."""
        return self.fingerprint is not None and not self.fingerprint_needs_model

    @property
    def reads_images(self) -> bool:
        """Whether sites are described by their images, which a table has none of."""
        return self.fingerprint is not None and KINDS[self.fingerprint].of_images
