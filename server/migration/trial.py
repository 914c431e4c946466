"""Moves that nobody's data speak for are on trial, and what a trial has shown is remembered."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A move must bring the loss down to this part of what it was: half-hearted ones harm.
_HELPS = 0.5
# The loss of a single round is noisy: how a site does at home is the median of so many rounds. Within these a group's
# model follows a member whose data stay as they are, so that its loss falls to this part.
_STEADY, _FOLLOWED = 3, 0.8


@dataclass
class Trials:
    """The trials of one site.

    A trial compares two groups by the site's loss while it trains. The group it left had followed it for as many rounds
    as it was under suspicion; the one it comes to may do so for as many. Who is not far better off then goes back.

    What a trial has shown holds as long as the site's data stay as they are. Then the model of its group follows it,
    and its loss falls. If it does not fall, the data have gone on changing, and the groups may be compared anew.

    Attributes
    ----------
    losses
        Of the last rounds in the group it is in.
    left, loss_there, rounds
        On trial: the group it left (None: it is on no trial), its last loss there, and for how many rounds it is away.
    refuted
        Groups that are no better than the site's own, each with the loss in its own group when the two were compared.
    """

    losses: list[float] = field(default_factory=list)
    left: int | None = None
    loss_there: float | None = None
    rounds: int = 0
    refuted: dict[int, float] = field(default_factory=dict)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Trials:
        """Return what `state` described."""
        refuted = {int(group): loss for group, loss in state["refuted"].items()}
        return cls(**{**state, "refuted": refuted})

    def state(self) -> dict[str, Any]:
        """Return all of it, by the names of its fields."""
        return vars(self) | {"refuted": {str(group): loss for group, loss in self.refuted.items()}}

    def judge(self, loss: float | None, sizes: Mapping[int, int], patience: int) -> int | None:
        """Take in the loss of a round; return the group that the site goes back to, None: it stays where it is.

        Where a loss is unknown, or the group it left is empty, there is nothing to compare and nowhere to go.
        """
        passed = False
        if self.left is not None:
            self.rounds += 1
            if loss is None or self.loss_there is None or not sizes[self.left]:
                self.left = None
            elif loss <= _HELPS * self.loss_there:
                self.refuted, self.left, passed = {self.left: loss}, None, True
        # What has been compared holds from the next round on.
        self.losses = [] if loss is None or passed else [*self.losses, loss][-_STEADY:]
        if self.left is None and len(self.losses) == _STEADY:
            level = statistics.median(self.losses) / _FOLLOWED
            self.refuted = {group: then for group, then in self.refuted.items() if level < then}
        return self.left if self.rounds >= patience else None

    def settle(self, group: int, goes_to: int, *, known: bool) -> None:
        """Note that the site goes from one group to another, or stays; `known`: its data speak for that."""
        if goes_to == self.left and self.loss_there is not None:
            self.refuted[group] = self.loss_there
        tried = not known and goes_to not in (group, self.left)
        self.left, self.loss_there, self.rounds = group if tried else None, self.losses[-1] if self.losses else None, 0
        if goes_to != group:
            self.losses = []
