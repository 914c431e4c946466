"""A method is a recipe: what sites send, how far apart they are, how they are grouped, how they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from common.config import ClusterSettings, Config, FlatValue
from server.clustering import KSelection
from server.methods.training import TrainingRule


@dataclass(frozen=True)
class Grouping:
    """The outcome of a partition rule: `labels` 0..K−1 numbered by first member."""

    labels: NDArray[np.int64]
    selection: KSelection | None = None


@dataclass(frozen=True)
class Placement:
    """Where a late site belongs. A `group` equal to the number of groups founds a new one."""

    group: int
    confidence: float


class PartitionRule(Protocol):
    """Turns distances into groups, and later finds the place of a newcomer."""

    def form(self, distance: NDArray[np.float64] | None, sites: int, settings: ClusterSettings) -> Grouping:
        """Group `sites` sites; `distance` is float64[N, N] where the method has one."""

    def place(self, distance: NDArray[np.float64] | None, labels: NDArray[np.int64]) -> Placement:
        """Place a newcomer whose distances to the labelled sites are `distance` (float64[N])."""


# The fingerprints are of the one kind that the method asks for.
Distance = Callable[[Sequence[Any], ClusterSettings], NDArray[np.float64]]


@dataclass(frozen=True)
class Method:
    """One row of a table of methods.

    Attributes
    ----------
    name, title, paper, summary
        What the user types, reads and cites; one sentence of help.
    fingerprint
        What sites are asked for before training (`query.<fingerprint>`); None: only who they are.
    distance
        Distance matrix of the fingerprints; None: the partition needs none.
    partition
        From distances to groups.
    fingerprint_needs_model
        Whether the query carries the model every site starts from.
    migration
        The rule by which sites change groups under `migration.rule = "auto"`.
    clustered
        Whether there are groups between which migration may move sites.
    one_round
        Whether the server learns everything from what each site sends before training.
    objective
        What sites minimise in local training, one of `client.objectives`.
    training
        Makes the rule for what happens during training, for one run.
    settings
        Values that the recipe fixes, by flat key: they are what makes it this method and not another.
    settings_used
        Settings that this method listens to beyond those of every run, for the reader.
    needs_k
        Whether the number of groups must be given.
    """

    name: str
    title: str
    paper: str
    summary: str
    fingerprint: str | None
    distance: Distance | None
    partition: PartitionRule
    fingerprint_needs_model: bool = False
    migration: Literal["off", "guarded"] = "off"
    clustered: bool = True
    one_round: bool = False
    objective: str = "plain"
    training: Callable[[Config], TrainingRule] = lambda config: TrainingRule()
    settings: Mapping[str, FlatValue] = field(default_factory=dict)
    settings_used: tuple[str, ...] = ()
    needs_k: bool = False

    def variant(self, **changes: Any) -> Method:
        """The same recipe but for `changes`."""
        return replace(self, **changes)

    @property
    def can_confirm(self) -> bool:
        """Whether a fresh fingerprint is cheap enough to ask a suspect for: it costs the site no training."""
        return self.fingerprint is not None and not self.fingerprint_needs_model
