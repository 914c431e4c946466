"""The groups of a run: the model of each, and how sites go from one to another."""

from __future__ import annotations

from collections.abc import Mapping

from common.state import State
from server.history.events import Audience, GroupRetired, SiteCleared, SitesMoved
from server.methods.training import Move
from server.roster import Roster


def dominant(sizes: Mapping[str, int]) -> tuple[str, float] | None:
    """Return the site that has more than half of a group's samples, and its share; None: nobody, or it is alone."""
    total = sum(sizes.values())
    if len(sizes) < 2 or not total:
        return None
    site = max(sizes, key=lambda name: sizes[name])
    share = sizes[site] / total
    return (site, share) if share > 0.5 else None


class Groups:
    """Models by group. Numbers are never used twice: a group is known by its number in every file of the run.

    Parameters
    ----------
    roster
        The members; which group each is in stands there.
    audience
        Hears who moves.
    """

    def __init__(self, roster: Roster, audience: Audience) -> None:
        self._roster = roster
        self._audience = audience
        self._founded = 0
        self.models: dict[int, State] = {}

    def open(self, models: Mapping[int, State]) -> None:
        """Begin with these models."""
        self.models = dict(models)
        self._founded = max(self.models) + 1

    def admit(self, group: int, start: State) -> None:
        """Make sure that a group has a model: a newcomer may be put into one of its own."""
        self.models.setdefault(group, start)
        self._founded = max(self._founded, group + 1)

    def carry_out(self, move: Move, round_number: int) -> int:
        """Return the group that the sites of a move belong to from now on."""
        if move.target == move.origin:
            for site in move.sites:
                self._audience.tell(SiteCleared(round_number, site, move.origin, move.evidence))
            return move.origin
        group = move.target
        if group is None:
            group, self._founded = self._founded, self._founded + 1
            self.models[group] = self.models[move.origin]
        for site in move.sites:
            self._roster[site].group = group
        founded = move.target is None
        self._audience.tell(SitesMoved(round_number, move.sites, move.origin, group, founded, move.evidence))
        return group

    def retire(self, round_number: int) -> list[int]:
        """Let go of the groups that nobody belongs to any more, and say which those are."""
        gone = sorted(self.models.keys() - set(self._roster.labels.tolist()))
        for group in gone:
            del self.models[group]
            self._audience.tell(GroupRetired(round_number, group))
        return gone

    def state(self) -> dict[str, object]:
        """What must be remembered from round to round."""
        return {"models": {str(group): dict(model) for group, model in self.models.items()}, "founded": self._founded}

    def restore(self, state: Mapping[str, object], like: State) -> None:
        """Remember what an earlier `state` said; the models must be of the network whose state is `like`."""
        models = state["models"]
        assert isinstance(models, dict)
        for group, model in models.items():
            if _shapes(model) != _shapes(like):
                raise ValueError(f"the model of group {group} is not of the network of this run")
        self.models = {int(group): model for group, model in models.items()}
        self._founded = int(str(state["founded"]))


def _shapes(model: State) -> dict[str, tuple[object, ...]]:
    return {name: (array.dtype, array.shape) for name, array in model.items()}
