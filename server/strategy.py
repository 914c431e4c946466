"""Who trains what with whom: a Flower strategy with one model per group of sites.

Works with Flower's own `start()` loop. Replies are taken one by one: screened, added to their group's average, and
forgotten, so memory holds one model and one accumulator per group, not one copy per site.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from common import wire
from common.classes import agreed_classes
from common.config import Config, SettingsError
from common.metrics import EvaluationStatistics, Metrics, pool, site_spread, summarise
from common.models import State, flat_head
from common.randomness import generator
from server import checkpoint, run_directory
from server.aggregation import GroupAverage, RejectedUpdate
from server.enrolment import Enrolment, content_of
from server.events import (
    Audience,
    GroupKept,
    GroupRetired,
    GroupsFormed,
    ModelKept,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    SiteCleared,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    SiteRenewed,
    SitesMoved,
    Stage,
    StageStarted,
)
from server.grid import StreamingGrid
from server.methods import Method, migration_rule
from server.methods.training import Contribution, Draw
from server.migration import Evidence, Verdict
from server.personalisation import personalise
from server.relocation import Relocation
from server.roster import Member, Roster
from server.survey import survey

_log = logging.getLogger("coterie")

# A site may train on more samples than it declared, but not on wildly more: the fixed-point averages are scaled by what
# was declared. Where data are expected to change there is more room. Whoever outgrows that is asked anew.
_GROWTH, _GROWTH_IF_CHANGING = 2, 16


class NoSites(SettingsError):
    """Nobody is left to train with."""


@dataclass
class StageBook:
    """Who was asked in the current stage, which groups' models each was sent, and how many bytes that was."""

    stage: Stage
    round_number: int
    waiting: dict[str, Member]
    offers: dict[str, tuple[int, ...]]
    bytes_sent: dict[str, int]


class ClusteredStrategy(Strategy):
    """Independent federated averaging in every group of sites.

    Parameters
    ----------
    config
        The validated settings of the run.
    method
        How sites are grouped.
    initial
        The model every group starts from.
    audience
        Hears what happens.
    keep
        Is told of each finished round and how to get the state after it, for a checkpoint.
    draw
        Further starting weights, for a method whose groups start from different ones; 0 is `initial`.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        initial: State,
        audience: Audience,
        keep: Callable[[int, Callable[[], checkpoint.State]], None] = lambda round_number, state: None,
        draw: Draw | None = None,
    ) -> None:
        self._keep = keep
        self._draw = draw or (lambda number: initial)
        self._rule = method.training(config)
        self._config = config
        self._method = method
        self._initial = initial
        self._audience = audience
        self._class_count = len(agreed_classes(config.data))
        self._settings = config.for_site()
        self._roster = Roster()
        self._enrolment = Enrolment(config, method, initial, self._roster, audience)
        self._relocation = (
            None
            if migration_rule(config) == "off"
            else Relocation(config, method, self._roster, self._enrolment, audience)
        )
        self._models: dict[int, State] = {}
        self._changing = config.data.watch or bool(config.drift)
        self._growth = _GROWTH_IF_CHANGING if self._changing else _GROWTH
        self._outgrown: set[str] = set()
        # Sites that have their final model on their own disk.
        self._holders: set[str] = set()
        self._head_changes: dict[str, NDArray[np.float64]] = {}
        self._founded = 0
        # Rounds that an earlier process has done.
        self._done = 0
        self._grid: Grid | None = None
        self._book: StageBook | None = None
        self._train_loss = math.nan

    # --- from one process to another ---------------------------------------------------------------------------

    def state(self) -> checkpoint.State:
        """Everything that the rounds to come depend on."""
        return {
            "members": self._roster.state(),
            "models": {str(group): dict(model) for group, model in self._models.items()},
            "founded": self._founded,
            "outgrown": sorted(self._outgrown),
            "relocation": None if self._relocation is None else self._relocation.state(),
            "rule": self._rule.state(),
            "train_loss": run_directory.finite(self._train_loss),
        }

    def restore(self, round_number: int, state: checkpoint.State) -> None:
        """Take over what an earlier process knew after a round. Where the sites are now is found out by `rejoin`."""
        self._roster.restore(state["members"])
        self._models = {int(group): model for group, model in state["models"].items()}
        for group, model in self._models.items():
            if _shapes(model) != _shapes(self._initial):
                raise ValueError(f"the model of group {group} is not a {self._config.train.model}")
        self._founded, self._outgrown = state["founded"], set(state["outgrown"])
        if self._relocation is not None:
            self._relocation.restore(state["relocation"])
        self._rule.restore(state["rule"])
        self._train_loss = math.nan if state["train_loss"] is None else state["train_loss"]
        self._done = round_number

    def rejoin(self, grid: StreamingGrid) -> None:
        """Find out which node each member sits on now. Who is missing is waited for no longer than at any start."""
        nodes = grid.wait_for_nodes(len(self._roster), self._config.round.start_timeout)
        for name, node in sorted(self._enrolment.recognise(grid, nodes, self._done).items()):
            self._roster.seat(name, node)

    def test_again(self, grid: StreamingGrid) -> None:
        """Test the models of the last round that an earlier process did: of its tests the log holds nothing."""
        messages = self._ask("evaluate", self._done, grid, self._tested)
        self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self._config.round.deadline))

    @property
    def members(self) -> list[Member]:
        """The sites of the run, by name."""
        return self._roster.members

    @property
    def models(self) -> dict[int, State]:
        """The model of each group."""
        return dict(self._models)

    def summary(self) -> None:
        """Log what is about to happen; called by Flower before the first round."""
        groups = self._roster.groups()
        _log.info("%s: %d sites in %d groups", self._method.title, len(self._roster), len(groups))

    # --- before training ---------------------------------------------------------------------------------------

    def _enrol(self, grid: StreamingGrid) -> list[Member]:
        """Wait for the sites, and ask each for its fingerprint once."""
        nodes = grid.wait_for_nodes(self._config.sites, self._config.round.start_timeout)
        if not nodes:
            raise NoSites(
                f"no site connected within {self._config.round.start_timeout:.0f} s (round.start_timeout): "
                "start the SuperNodes first"
            )
        if len(nodes) < self._config.sites:
            _log.warning("%d of %d sites connected in time; going on with them", len(nodes), self._config.sites)
        for introduction, node_id in self._enrolment.introduce(grid, nodes, round_number=0):
            self._roster.add(Member(introduction.card, node_id, introduction.fingerprint))
            self._audience.tell(SiteEnrolled(introduction.card, late=False))
        if not len(self._roster):
            raise NoSites(f"no site can take part: {self._enrolment.why_nobody()}")
        return self._roster.members

    def group_sites(self, grid: StreamingGrid) -> None:
        """Get to know the sites, and form the groups."""
        members = self._enrol(grid)
        distance = None
        if self._method.distance is not None:
            fingerprints = [member.fingerprint for member in members if member.fingerprint is not None]
            distance = self._method.distance(fingerprints, self._config.cluster)
        grouping = self._method.partition.form(distance, len(members), self._config.cluster)
        for member, label in zip(members, grouping.labels, strict=True):
            member.group = int(label)
        opening = self._rule.open(self._draw, lambda models: self._ask_losses(grid, models))
        if opening is None:
            self._models = dict.fromkeys(self._roster.groups(), self._initial)
        else:
            self._models = opening.models
            for name, group in opening.groups.items():
                self._roster[name].group = group
        self._founded = max(self._models) + 1
        selection = grouping.selection
        self._audience.tell(
            GroupsFormed(
                sites=tuple(member.name for member in members),
                labels=tuple(member.group for member in members),
                distance=distance,
                k_scores=dict(selection.scores) if selection else None,
                k_window=tuple(selection.window) if selection else None,
                cv=selection.cv if selection else None,
            )
        )

    def _ask_losses(self, grid: StreamingGrid, models: Sequence[State]) -> dict[str, NDArray[np.float64]]:
        """Ask every site for its loss under each model."""
        limits = self._config.round
        task = wire.Task(self._settings, 0, self._config.rounds)
        packed = [wire.pack_arrays(model) for model in models]
        answers = survey(
            grid,
            self._audience,
            self._roster.members,
            "losses",
            lambda member: wire.pack_task(task, *packed),
            lambda member, content: wire.unpack_losses(content, models=len(models), limit_mb=limits.max_message_mb),
            stage="enrol",
            round_number=0,
            deadline=limits.deadline,
        )
        return {name: losses.values for name, losses in answers.items()}

    def _renew_cards(self, grid: StreamingGrid, round_number: int) -> None:
        """Ask sites that have far more data than they declared to introduce themselves again."""
        names, self._outgrown = sorted(self._outgrown), set()
        if not names:
            return
        for name, introduction in self._enrolment.ask_again(
            grid, [self._roster[name] for name in names], round_number
        ).items():
            self._roster.renew(name, introduction)
            self._audience.tell(SiteRenewed(introduction.card))

    def _admit_newcomers(self, grid: StreamingGrid, round_number: int) -> None:
        """Place sites that connected since the last round; nobody else is moved for them."""
        strangers = self._enrolment.strangers(grid)
        if not strangers:
            return
        for introduction, node in self._enrolment.introduce(grid, strangers, round_number):
            name = introduction.card.name
            if name in self._roster:
                self._roster.move(name, node, introduction)
                self._audience.tell(SiteEnrolled(introduction.card, late=True))
                continue
            distance = None
            if self._method.distance is not None and introduction.fingerprint is not None:
                known = [member.fingerprint for member in self._roster.members if member.fingerprint is not None]
                distance = self._method.distance([*known, introduction.fingerprint], self._config.cluster)[-1, :-1]
            placement = self._method.partition.place(distance, self._roster.labels)
            self._models.setdefault(placement.group, self._initial)
            self._founded = max(self._founded, placement.group + 1)
            self._roster.add(Member(introduction.card, node, introduction.fingerprint, placement.group))
            self._audience.tell(SiteEnrolled(introduction.card, late=True))
            self._audience.tell(SitePlaced(round_number, name, placement.group, placement.confidence))

    # --- a round -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each site that trains this round its group's model."""
        streaming = self._streaming(grid)
        round_number = self._done + server_round
        if not self._models:
            self.group_sites(streaming)
        elif round_number > 1:
            self._renew_cards(streaming, round_number)
            self._admit_newcomers(streaming, round_number)
        return self._ask("train", round_number, grid, self._participants)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the updates into their groups' averages as they arrive."""
        round_number = self._done + server_round
        averages: dict[int, GroupAverage] = {}
        finished: dict[int, State] = {}
        losses: dict[str, tuple[float, int]] = {}
        chosen: dict[str, int] = {}
        for member, reply in self._replies(replies):
            update = self._accept_update(member, reply, averages)
            if update is not None:
                losses[member.name] = (update.loss, update.samples)
                chosen[member.name] = self._offers_of(member)[update.choice]
            # A group whose sites have all been heard gives its accumulator back at once.
            for group in self._offers_of(member):
                if group in averages and not self._still_waiting(group):
                    finished[group] = self._close(averages.pop(group), group, round_number)
            del reply, update
        for group in sorted(averages):
            finished[group] = self._close(averages.pop(group), group, round_number)
        self._report_silent()
        self._models |= finished
        self._follow_choices(round_number, chosen)
        for group in sorted({member.group for member in self._roster.members} - finished.keys()):
            self._audience.tell(GroupKept(round_number, group, 0, self._config.round.min_replies))
        self._relocate(round_number)
        self._regroup(round_number)
        samples = sum(count for _, count in losses.values())
        # Summed by fsum, which is exact, so that the order of arrival leaves no trace.
        self._train_loss = math.fsum(loss * count for loss, count in losses.values()) / samples if samples else math.nan
        labels = {member.name: member.group for member in self._roster.members}
        self._audience.tell(RoundTrained(round_number, self._train_loss, labels))
        return None, MetricRecord({"loss": self._train_loss, "sites": len(losses)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every site its group's model to be tested on the site's own test split."""
        return self._ask("evaluate", self._done + server_round, grid, self._tested)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Pool the sites' statistics per group and overall, and close the round."""
        pooled: dict[int, EvaluationStatistics] = {}
        losses: dict[int, list[float]] = {}
        sites: dict[str, Metrics] = {}
        for member, reply in self._replies(replies):
            try:
                evaluation = wire.unpack_evaluation(
                    content_of(reply), classes=self._class_count, limit_mb=self._config.round.max_message_mb
                )
                count = int(evaluation.statistics.confusion.sum())
                self._check_tested(member, count)
            except wire.WireError as error:
                self._leave_out(member, str(error))
                continue
            self._accepted(member, reply, evaluation.seconds)
            if evaluation.stored:
                self._held(member.name)
            if not count:
                continue
            sites[member.name] = summarise(evaluation.statistics)
            # Counts add up exactly in any order; the float losses are kept apart for an exact sum.
            losses.setdefault(member.group, []).append(evaluation.statistics.loss_sum)
            counts = replace(evaluation.statistics, loss_sum=0.0)
            pooled[member.group] = pool([pooled[member.group], counts]) if member.group in pooled else counts
        self._report_silent()
        groups = {g: replace(pooled[g], loss_sum=math.fsum(losses[g])) for g in sorted(pooled)}
        # A round in which nobody could be tested is told all the same: its models are trained.
        overall = (
            summarise(pool(list(groups.values()))) if groups else Metrics(math.nan, math.nan, math.nan, math.nan, 0)
        )
        mean, worst = site_spread([sites[name].accuracy for name in sorted(sites)])
        self._audience.tell(
            RoundFinished(
                round_number=self._done + server_round,
                overall=overall,
                groups={group: summarise(statistics) for group, statistics in groups.items()},
                sites={name: sites[name] for name in sorted(sites)},
                labels={member.name: member.group for member in self._roster.members},
                mean_site_accuracy=mean,
                worst_tenth_accuracy=worst,
                train_loss=self._train_loss,
                models=dict(self._models),
            )
        )
        self._keep(self._done + server_round, self.state)
        return MetricRecord({"accuracy": overall.accuracy, "macro_f1": overall.macro_f1, "mean_site_accuracy": mean})

    # --- after the last round ----------------------------------------------------------------------------------

    def personalise(self, grid: StreamingGrid) -> None:
        """After the last round, let every site make a model of its own from its group's, and tell how that does."""
        holders = personalise(
            grid, self._config, [member for member in self._roster.members if self._tested(0, [member])],
            self._models, self._initial, self._audience, self._check_tested,
        )  # fmt: skip
        for name in sorted(holders):
            self._held(name)

    def hand_out(self, grid: StreamingGrid) -> None:
        """Send every site that keeps models, and has none of its own making, its group's; who fails is named."""
        if not self._models or not self._keepers(self._config.rounds, self._roster.members):
            return
        messages = self._ask("keep", self._config.rounds, grid, self._keepers)
        for member, reply in self._replies(grid.send_and_receive(messages, timeout=self._config.round.deadline)):
            try:
                seconds = wire.unpack_kept(content_of(reply), limit_mb=self._config.round.max_message_mb)
            except wire.WireError as error:
                self._leave_out(member, str(error))
            else:
                self._accepted(member, reply, seconds)
                self._held(member.name)
        self._report_silent()

    def _held(self, name: str) -> None:
        """Note that a site has its final model on its own disk."""
        self._holders.add(name)
        self._audience.tell(ModelKept(name))

    # --- between training and testing --------------------------------------------------------------------------

    def _relocate(self, round_number: int) -> None:
        """Move sites whose updates, and fresh fingerprints where there are any, say that they belong elsewhere."""
        if self._relocation is None or self._grid is None:
            return
        changes, self._head_changes = self._head_changes, {}
        for verdict in self._relocation.review(self._streaming(self._grid), round_number, changes):
            group = self._carry_out(verdict, round_number)
            self._relocation.settle(verdict, group, round_number)
        for group in sorted(self._models.keys() - set(self._roster.labels.tolist())):
            del self._models[group]
            self._audience.tell(GroupRetired(round_number, group))

    def _carry_out(self, verdict: Verdict, round_number: int) -> int:
        """Return the group that the site belongs to from now on."""
        if verdict.target == verdict.origin:
            self._audience.tell(SiteCleared(round_number, verdict.site, verdict.origin, verdict.evidence))
            return verdict.origin
        group = verdict.target
        if group is None:
            # Numbers are never used twice: a group is known by its number in every file of the run.
            group, self._founded = self._founded, self._founded + 1
            self._models[group] = self._models[verdict.origin]
        self._roster[verdict.site].group = group
        founded = verdict.target is None
        self._audience.tell(SitesMoved(round_number, (verdict.site,), verdict.origin, group, founded, verdict.evidence))
        return group

    def _follow_choices(self, round_number: int, chosen: dict[str, int]) -> None:
        """Put sites that trained another group's model than their own into that group."""
        ways: dict[tuple[int, int], list[str]] = {}
        for name, group in sorted(chosen.items()):
            member = self._roster[name]
            if member.group != group:
                ways.setdefault((member.group, group), []).append(name)
                member.group = group
        for (origin, target), names in sorted(ways.items()):
            evidence = Evidence(reason="its model fits them better")
            self._audience.tell(SitesMoved(round_number, tuple(names), origin, target, False, evidence))

    def _regroup(self, round_number: int) -> None:
        """Let the method's training rule move sites."""
        groups = {group: [member.name for member in members] for group, members in self._roster.groups().items()}
        for regrouping in self._rule.review(round_number, groups):
            origin = self._roster[regrouping.sites[0]].group
            group = regrouping.target
            if group is None:
                group, self._founded = self._founded, self._founded + 1
                self._models[group] = self._models[origin]
            for name in regrouping.sites:
                self._roster[name].group = group
            founded = regrouping.target is None
            evidence = Evidence(reason=regrouping.reason)
            self._audience.tell(SitesMoved(round_number, regrouping.sites, origin, group, founded, evidence))

    # --- asking and listening ----------------------------------------------------------------------------------

    def _ask(
        self, stage: Stage, round_number: int, grid: Grid, choose: Callable[[int, list[Member]], list[Member]]
    ) -> Iterator[Message]:
        """Book a stage and return its messages, group by group, so that groups finish one after the other."""
        self._grid = grid
        connected = set(grid.get_node_ids())
        chosen: list[Member] = []
        absent: list[Member] = []
        for members in self._roster.groups().values():
            present = [member for member in members if member.node_id in connected]
            absent += [member for member in members if member.node_id not in connected]
            chosen += choose(round_number, present) if present else []
        offers = {member.name: self._offers(stage, member) for member in chosen}
        self._book = StageBook(stage, round_number, {member.name: member for member in chosen}, offers, {})
        self._audience.tell(StageStarted(stage, round_number, len(chosen)))
        for member in absent:
            self._leave_out(member, "not connected")
        return self._messages(self._book, chosen)

    def _messages(self, book: StageBook, members: list[Member]) -> Iterator[Message]:
        task = wire.Task(self._settings, book.round_number, self._config.rounds, self._method.objective)
        packed: dict[int, ArrayRecord] = {}
        keeping = book.stage == "keep"
        for member in members:
            # Members come group by group: each group's model is serialised once, and only while it is being sent.
            offers = book.offers[member.name]
            packed = {group: packed.get(group) or wire.pack_arrays(self._models[group]) for group in offers}
            content = wire.pack_task(replace(task, group=member.group) if keeping else task, *packed.values())
            book.bytes_sent[member.name] = wire.size(content)
            kind = "query.keep" if keeping else book.stage
            yield Message(content, member.node_id, kind, ttl=self._config.round.deadline)

    def _offers(self, stage: Stage, member: Member) -> tuple[int, ...]:
        """Groups whose models a member is sent; it is tested with its own alone."""
        return self._rule.offers(member.group, self._models.keys()) if stage == "train" else (member.group,)

    def _offers_of(self, member: Member) -> tuple[int, ...]:
        assert self._book is not None
        return self._book.offers[member.name]

    def _participants(self, round_number: int, members: list[Member]) -> list[Member]:
        """Draw the share of a group that trains this round, at least one."""
        count = max(1, round(self._config.train.fraction * len(members)))
        if count == len(members):
            return members
        rng = generator(self._config.seed, "participation", f"group {members[0].group}", round_number)
        drawn = np.sort(rng.choice(len(members), count, replace=False))
        return [members[index] for index in drawn]

    def _tested(self, round_number: int, members: list[Member]) -> list[Member]:
        # Who has nothing to test on is not asked, unless that may have changed.
        return [member for member in members if member.card.test_samples or self._changing]

    def _keepers(self, round_number: int, members: list[Member]) -> list[Member]:
        return [member for member in members if member.card.keeps and member.name not in self._holders]

    def _replies(self, replies: Iterable[Message]) -> Iterator[tuple[Member, Message]]:
        """Match replies to the members that were asked; a reply nobody asked for is dropped."""
        assert self._book is not None
        for reply in replies:
            node = self._grid.node_of(reply) if isinstance(self._grid, StreamingGrid) else reply.metadata.src_node_id
            member = self._roster.at_node(node)
            if member is None or self._book.waiting.pop(member.name, None) is None:
                _log.warning("ignored a reply from node %d that nobody is waiting for", node)
                continue
            yield member, reply

    def _accept_update(self, member: Member, reply: Message, averages: dict[int, GroupAverage]) -> wire.Update | None:
        assert self._book is not None
        try:
            offers = self._offers_of(member)
            update = wire.unpack_update(
                content_of(reply), limit_mb=self._config.round.max_message_mb, offered=len(offers)
            )
            self._check_growth(member, update.samples, member.card.train_samples, "training")
            group = offers[update.choice]
            before = self._models[group]
            if group not in averages:
                averages[group] = GroupAverage(before, self._capacity(group))
            averages[group].add(update.state, update.samples)
            if self._relocation is not None:
                self._head_changes[member.name] = flat_head(update.state) - flat_head(before)
            contribution = Contribution(member.name, group, update.samples, before, update.state)
            self._rule.observe(self._book.round_number, contribution)
        except (wire.WireError, RejectedUpdate) as error:
            self._leave_out(member, str(error))
            return None
        self._accepted(member, reply, update.seconds)
        return update

    def _check_tested(self, member: Member, count: int) -> None:
        """Refuse a test on another number of samples than the site can have."""
        if not count and member.card.test_samples and not self._changing:
            raise wire.WireError(f"tests on nothing after declaring {member.card.test_samples} samples")
        self._check_growth(member, count, max(member.card.test_samples, self._changing), "test")

    def _check_growth(self, member: Member, count: int, declared: int, part: str) -> None:
        if count > self._growth * declared:
            self._outgrown.add(member.name)
            raise wire.WireError(f"claims {count} {part} samples after declaring {declared}")

    def _capacity(self, group: int) -> int:
        """An upper bound of the samples behind a group's average, known before the first reply."""
        return self._growth * sum(
            member.card.train_samples for member in self._roster.members if group in self._offers("train", member)
        )

    def _still_waiting(self, group: int) -> bool:
        assert self._book is not None
        return any(group in self._book.offers[name] for name in self._book.waiting)

    def _close(self, average: GroupAverage, group: int, round_number: int) -> State:
        """Turn an accumulator into the group's new model, or keep the old one when too few sites contributed."""
        if average.count >= self._config.round.min_replies:
            return average.result()
        self._audience.tell(GroupKept(round_number, group, average.count, self._config.round.min_replies))
        return self._models[group]

    def _accepted(self, member: Member, reply: Message, seconds: float) -> None:
        assert self._book is not None
        sent = self._book.bytes_sent.get(member.name, 0)
        received = wire.size(reply.content)
        self._audience.tell(
            ReplyAccepted(self._book.stage, self._book.round_number, member.name, sent, received, seconds)
        )

    def _leave_out(self, member: Member, reason: str) -> None:
        assert self._book is not None
        self._audience.tell(SiteLeftOut(self._book.stage, self._book.round_number, member.name, reason))

    def _report_silent(self) -> None:
        assert self._book is not None
        for name in sorted(self._book.waiting):
            member = self._book.waiting[name]
            if isinstance(self._grid, StreamingGrid) and not self._grid.was_asked(member.node_id):
                self._leave_out(member, "its message could not be sent in time (round.deadline, round.in_flight)")
            else:
                self._leave_out(member, f"no reply within {self._config.round.deadline:.0f} s (round.deadline)")

    def _streaming(self, grid: Grid) -> StreamingGrid:
        if isinstance(grid, StreamingGrid):
            return grid
        limits = self._config.round
        return StreamingGrid(grid, deadline=limits.deadline, in_flight=limits.in_flight)


def _shapes(model: State) -> dict[str, tuple[object, ...]]:
    return {name: (array.dtype, array.shape) for name, array in model.items()}
