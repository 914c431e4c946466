"""What happens during training: the part of a recipe that may regroup sites as the rounds go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server import checkpoint

# A model as named arrays. Not imported from common.models, which loads torch.
State = dict[str, NDArray[Any]]
# Draws the n-th set of starting weights; the 0th is the one that every method of a seed starts from.
Draw = Callable[[int], State]
# Asks the sites for their mean loss under each of K models: float64[K] by name, of those that answered.
AskLosses = Callable[[Sequence[State]], Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True)
class Opening:
    """How training begins: the groups' models, and the group of each site that is not to stay where it is."""

    models: dict[int, State]
    groups: dict[str, int]


@dataclass(frozen=True)
class Contribution:
    """One accepted update: what the site received, what it made of it, and from how many samples."""

    site: str
    group: int
    samples: int
    before: State
    after: State


@dataclass(frozen=True)
class Regrouping:
    """Sites of one group that go to another; `target` None: to a new one, which starts from the model they leave."""

    sites: tuple[str, ...]
    target: int | None
    reason: str


class TrainingRule:
    """FedAvg in every group. What a method does beyond that is an override of one of these.

    A rule belongs to one run. Whatever it remembers from round to round is part of `state`, which goes into the
    checkpoint.
    """

    def open(self, draw: Draw, ask: AskLosses) -> Opening | None:
        """Choose the models that groups start from; None: all from the same weights."""
        return None

    def offers(self, group: int, groups: Collection[int]) -> tuple[int, ...]:
        """Groups whose models are sent to a site of `group`, in order; it trains the one with the least loss."""
        return (group,)

    def observe(self, round_number: int, contribution: Contribution) -> None:
        """Look at an update as it arrives. The order of arrival must leave no trace."""

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> list[Regrouping]:
        """After a round's averaging, with the sites of each group by name, say who goes where."""
        return []

    def state(self) -> checkpoint.State:
        """What must be remembered from round to round."""
        return {}

    def restore(self, state: checkpoint.State) -> None:
        """Remember what an earlier `state` said."""
