"""What each site is told: the messages of a stage, each model and record serialised once for all who get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, RecordDict

from common import wire
from common.config import SiteSettings
from common.secure.terms import Terms
from common.state import Extras, State
from server.methods.training import TrainingRule
from server.roster import Member


@dataclass(frozen=True)
class Part:
    """What a site is told of the secure sum that it is a part of: its terms, and what other members have sent it."""

    terms: Terms
    letters: ArrayRecord


@dataclass
class Tasks:
    """The tasks of one stage.

    Attributes
    ----------
    settings, round_number, rounds, run, rule, method, checkpoints, folder, held
        As in `wire.Task`.
    training
        The server's half of the rule, which says what goes down beside the model.
    models
        Of the groups.
    tests
        The round whose result a site is to test, by site.
    accepted
        The last round of each site that counted.
    part
        Of who trains, in a sum that takes more than its update; None: it takes nothing more.
    """

    settings: SiteSettings
    round_number: int
    rounds: int
    run: str
    rule: str
    method: str
    training: TrainingRule
    models: Mapping[int, State]
    tests: Mapping[str, int]
    accepted: Mapping[str, int]
    checkpoints: tuple[int, ...]
    folder: str
    held: bool = False
    # Whether sites are to watch themselves.
    looks: bool = False
    part: Callable[[Member], Part | None] = lambda member: None
    _packed: dict[int, ArrayRecord] = field(default_factory=dict)
    # Beside the model, for a group whose number is the key.
    _beside: dict[int, dict[str, ArrayRecord]] = field(default_factory=dict)

    def content(self, member: Member, *, trains: bool) -> RecordDict:
        """The message to one member."""
        group = member.group
        # Members come group by group: what one group gets is serialised once, and only while it is being sent.
        if group not in self._packed:
            self._packed = {group: wire.pack_arrays(self.models[group])}
            self._beside = {}
        if trains and group not in self._beside:
            self._beside = {group: wire.pack_extras(self.training.beside(group, self.models))}
        own = wire.pack_extras(self.training.for_site(member.name, trains=trains))
        beside = self._beside[group] if trains else {}
        assert not beside.keys() & own.keys(), "a record goes to a group or to a site"
        part = self.part(member) if trains else None
        if part is None:
            return wire.pack_task(self._task(member), self._packed[group], beside | own)
        return wire.pack_task(
            replace(self._task(member), terms=part.terms), self._packed[group], beside | own, part.letters
        )

    def bare(self, member: Member, part: Part) -> RecordDict:
        """The message to one member of a sum that needs no model."""
        return wire.pack_task(replace(self._task(member), terms=part.terms), letters=part.letters)

    def goes_down(self, group: int) -> tuple[State, Extras]:
        """What every member of a group that trains is sent: the model, and what is beside it."""
        return self.models[group], self.training.beside(group, self.models)

    def _task(self, member: Member) -> wire.Task:
        return wire.Task(
            settings=self.settings,
            round_number=self.round_number,
            rounds=self.rounds,
            run=self.run,
            rule=self.rule,
            method=self.method,
            group=member.group,
            tests=self.tests.get(member.name, 0),
            accepted=self.accepted.get(member.name, 0),
            checkpoints=self.checkpoints,
            folder=self.folder,
            held=self.held,
            described=member.described if self.looks else None,
            weights=member.card.weights,
        )
