"""What each site is told: the messages of a stage, each model and record serialised once for all who get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, RecordDict

from common import wire
from common.config import SiteSettings
from common.state import State
from server.methods.training import TrainingRule
from server.roster import Member


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
        return wire.pack_task(self._task(member), self._packed[group], beside | own)

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
