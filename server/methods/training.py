"""What happens during training: who is in which group, and what becomes of the sites' updates.

As it stands here it is FedAvg in every group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from common.config import Config
from common.site_card import SiteCard
from common.state import Extras, State
from server.migration import Evidence

# What a rule remembers, for the checkpoint: dicts with text keys, lists, scalars, None, and NumPy arrays.
Remembered = dict[str, Any]


class Federation(Protocol):
    """What a rule may know of the federation, and ask of it."""

    def sizes(self, group: int) -> Mapping[str, int]:
        """Training samples that each member of a group has declared."""

    def draw(self, number: int) -> State:
        """The n-th set of starting weights; the 0th is the one that every method of a seed starts from."""

    def own_start(self) -> State:
        """What of the 0th start does not travel: the tensors that are each site's own."""

    @property
    def models(self) -> Mapping[int, State]:
        """The model of each group."""

    @property
    def members(self) -> Sequence[Known]:
        """The sites of the run, by name."""

    def ask(
        self,
        question: str,
        extras: Extras,
        check: Callable[[Extras], None],
        *,
        sites: Collection[str] | None = None,
        round_number: int = 0,
        few: bool = False,
    ) -> Mapping[str, Extras]:
        """Ask sites, whoever trains in this round, a question that the method declares; return their answers by name.

        `sites` None: all. `round_number` is the last round that is over; 0: none is. `check` raises `InvalidExtras` or
        `RejectedUpdate` for an answer that makes no sense; who gave it is named and left out. `few`: everybody else
        waits for these sites, so they have less time, and who never answers is not asked for ever.
        """


class Known(Protocol):
    """A site as a rule sees it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def card(self) -> SiteCard:
        """How much data it has declared, and of which classes."""


@dataclass(frozen=True)
class Opening:
    """How training begins: the groups' models, and the group of each site that is not to stay where it is."""

    models: dict[int, State]
    groups: dict[str, int]


@dataclass(frozen=True)
class Placement:
    """Where a late site belongs. A `group` equal to the number of groups founds a new one.

    `confidence` lies between 0 and 1; `fits` false: the site is as unlike the others there as it is unlike everybody.
    """

    group: int
    confidence: float
    fits: bool = True


@dataclass(frozen=True)
class Contribution:
    """One update: what the site received, what it made of it and from how many samples, and what it sent beside.

    `loss`: while it trained; `changed`: by how many standard deviations it finds its data changed, 0 if it does not.
    """

    round_number: int
    site: str
    group: int
    samples: int
    before: State
    after: State
    extras: Extras = field(default_factory=dict)
    loss: float = 0.0
    changed: float = 0.0


@dataclass(frozen=True)
class Move:
    """Sites of one group that go to another, and why.

    `target` None: to a new group, which starts from the model they leave; the group they are in: they were examined
    and stay.
    """

    sites: tuple[str, ...]
    origin: int
    target: int | None
    evidence: Evidence


class Mover:
    """Says who changes groups. Whatever it remembers from round to round is part of `state`."""

    def observe(self, contribution: Contribution) -> None:
        """Look at an update as it arrives. The order of arrival must leave no trace."""

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """After a round's averaging, with the sites of each group by name, say who goes where.

        Each move is carried out, and settled, before the next one is asked for.
        """
        yield from ()

    def settle(self, move: Move, group: int, round_number: int) -> None:
        """Note that a move was carried out: its sites belong to `group` now."""

    def state(self) -> Remembered:
        """What must be remembered from round to round."""
        return {}

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""


class GroupingRule(Mover):
    """Who is in which group while sites train. A rule belongs to one run."""

    def __init__(self, config: Config, federation: Federation) -> None:
        self.config = config
        self.federation = federation

    def open(self) -> Opening | None:
        """Choose the models that groups start from; None: all from the same weights."""
        return None

    def place(self, site: str, round_number: int) -> Placement | None:
        """Find the group of a site that joins after so many rounds; None: the method's partition rule knows better."""
        return None


class TrainingRule(GroupingRule):
    """FedAvg in every group. What a method does beyond that is an override of one of these.

    An update becomes a term (`term`), the terms of a group are averaged, and the mean becomes the group's new model
    (`close`).
    """

    # Whether what the rule remembers of a group speaks of its members: then nobody may leave it for another one.
    needs_lasting_groups: ClassVar[bool] = False

    def beside(self, group: int, models: Mapping[int, State]) -> Extras:
        """What every member of a group is sent beside its model when it trains."""
        return {}

    def for_site(self, site: str, *, trains: bool) -> Extras:
        """What one site alone is sent beside its model; a model that is only tested may need it, too."""
        return {}

    # Whether a site may train the model of any group; else only that of its own.
    offers_all: ClassVar[bool] = False

    def trained(self, group: int, extras: Extras) -> int:
        """The group whose model a member of `group` trained; raise `InvalidExtras` for one that it was not offered."""
        return group

    def passes(self) -> float:
        """How many times a site goes over its samples in an epoch; without learning from them it is a third of one."""
        return 1.0

    @property
    def is_plain(self) -> bool:
        """Whether updates enter the mean as they are."""
        return type(self).term is TrainingRule.term

    def reference(self, model: State) -> State:
        """Arrays that are what terms are: the same names, types and shapes, and values of the same size."""
        return model

    def term(self, contribution: Contribution) -> State:
        """What enters the mean; raise `InvalidExtras` if what the site sent beside its model makes no sense."""
        return contribution.after

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Turn the mean of a group's terms, over so many samples, into its new model."""
        return mean

    def forget(self, group: int) -> None:
        """Let go of what is remembered of a group that is no more; its number is not used again."""


MakeGrouping = Callable[[Config, Federation], GroupingRule]
