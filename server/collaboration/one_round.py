"""A run of one round: what sites sent once is all there is to learn from, and each gets one answer.

The same strategy as for many rounds, with Flower's own loop, but the groups' models are trained here: sites are not
asked to train, and each is tested with an answer of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common import wire
from common.classes import agreed_classes
from common.collaboration import Answer, Collaboration
from common.config import Config
from server.asking.grid import StreamingGrid
from server.asking.stage import Question
from server.asking.tasks import Tasks
from server.collaboration.solve import THRESHOLDS, Solution, solve
from server.history.events import Audience, GroupsFormed, SiteLeftOut, Solved, Solving, StageStarted
from server.methods import Method
from server.methods.method import Described
from server.roster import Member
from server.rounds.round import Reply
from server.rounds.testing import RoundResult
from server.strategy import ClusteredStrategy

_TELL_EVERY = 1.0  # seconds


class OneRoundStrategy(ClusteredStrategy):
    """Data collaboration: one query and one answer for each site."""

    _answers: dict[str, Answer]
    # Sites that could use their answer.
    _served: set[str]

    def group_sites(self, grid: StreamingGrid) -> None:
        """Ask each site for its collaboration, once, and learn everything from that."""
        self._grid = grid
        members = self._members.enrol(grid)
        found = find_groups(members, self._config, self._method, self._audience)
        self._answers, self._served = answers_of(found, members), set()
        for member, label in zip(members, found.labels.tolist(), strict=True):
            member.group = label
            # The rows have served their purpose, and are not kept longer than that.
            member.fingerprint = None
        self._groups.open(found.models)
        labels = {member.name: member.group for member in members}
        self._result = RoundResult(1, math.nan, labels, found.models)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: the models are there."""
        self._grid = grid
        if not self._groups.models:
            self.group_sites(self._streaming())
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nobody was asked."""
        return None, None

    def hand_out(self, grid: StreamingGrid) -> None:
        """Send nothing: a site that keeps models kept that of its answer, which is of no use elsewhere."""
        for member in self._roster.members:
            if member.card.keeps and member.name in self._served - self._holders:
                reason = "could not keep the model of its answer; the site's own log says more"
                self._audience.tell(SiteLeftOut("keep", self._config.rounds, member.name, reason))

    def _took_test(self, member: Member, reply: Reply) -> None:
        self._served.add(member.name)
        super()._took_test(member, reply)

    def _test_question(self, member: Member, tasks: Tasks) -> Question:
        task = wire.Task(
            self._config.for_site(),
            tasks.round_number,
            self._config.rounds,
            run=tasks.run,
            method=tasks.method,
            group=member.group,
        )
        return Question(answer_message(task, self._answers[member.name]), "evaluate.collaboration")

    def _testers(self, members: list[Member], result: RoundResult | None) -> list[Member]:
        # Everybody gets the answer, also who has nothing to test it on.
        return members


def answer_message(task: wire.Task, answer: Answer) -> RecordDict:
    """Write the answer to a collaboration."""
    return wire.pack_task(task, wire.pack_arrays(answer.model), wire.pack_extras(answer.beside_model()))


def find_groups(sites: Sequence[Described], config: Config, method: Method, audience: Audience) -> Solution:
    """Cut the tree of the sites at every candidate threshold, and let validation choose among the groupings."""
    offers: dict[str, Collaboration] = {site.card.name: site.fingerprint for site in sites}
    assert method.distance is not None
    distance = method.distance(sites, config)
    thresholds: Sequence[float] = (config.cluster.threshold,) if config.cluster.threshold else THRESHOLDS
    groupings = {
        threshold: method.partition.form(
            distance, len(sites), config.cluster.model_copy(update={"threshold": threshold})
        ).labels
        for threshold in thresholds
    }
    audience.tell(StageStarted("solve", 1, len(sites)))
    found = solve(
        offers,
        groupings,
        config.train,
        classes=len(agreed_classes(config.data)),
        seed=config.seed,
        progress=_throttled(lambda share: audience.tell(Solving(share))),
    )
    audience.tell(
        Solved(
            threshold=found.threshold,
            hidden=found.hidden,
            validation={f"{t:g} {hidden[0]}-{hidden[1]}": score for (t, hidden), score in found.validation.items()},
            ranks=dict(zip(offers, found.ranks, strict=True)),
            conditions=dict(zip(offers, found.conditions, strict=True)),
            groups={f"{threshold:g}": 1 + int(labels.max()) for threshold, labels in groupings.items()},
        )
    )
    audience.tell(
        GroupsFormed(
            sites=tuple(offers),
            labels=tuple(found.labels.tolist()),
            distance=distance,
            k_scores=None,
            k_window=None,
            cv=None,
        )
    )
    return found


def answers_of(found: Solution, sites: Sequence[Described]) -> dict[str, Answer]:
    """What each site is told: its own mapping, and the model of its group."""
    return {
        site.card.name: Answer(mapping, site.fingerprint.ticket, found.models[int(label)])
        for site, label, mapping in zip(sites, found.labels, found.mappings, strict=True)
    }


def _throttled(tell: Callable[[float], None]) -> Callable[[float], None]:
    last = time.monotonic()

    def passing(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _TELL_EVERY:
            last = time.monotonic()
            tell(share)

    return passing
