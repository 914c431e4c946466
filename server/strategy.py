"""Who trains what with whom: a Flower strategy with one model per group of sites.

Works with Flower's own `start()` loop. A round is one exchange: a site tests the model it is sent, which is the result
of the last round, and trains it. Replies are taken one by one: screened, added to their group's average, and forgotten,
so memory holds one model and one accumulator per group, not one copy per site.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from common import wire
from common.classes import agreed_classes
from common.config import Config
from common.methods import agreement_on
from common.readable import megabytes
from common.signature import Signature
from common.state import Extras, State
from server.aggregation import Aggregation, RejectedUpdate
from server.asking.grid import StreamingGrid
from server.asking.stage import UNUSABLE, Exchange, Question, ask
from server.asking.tasks import Tasks
from server.clustering import MergeTree, Rehearsed
from server.history import checkpoint
from server.history.events import (
    Audience,
    GroupKept,
    ModelKept,
    RoundTrained,
    SiteLeftOut,
    Stage,
)
from server.membership import Membership
from server.methods import Method, migration_rule
from server.methods.training import Mover
from server.migration.review import Migration
from server.participation import participants
from server.rehearsal import Rehearsal
from server.roster import Member
from server.rounds.final import hand_out, personalise
from server.rounds.pace import Late, pace_of
from server.rounds.round import Reply, Round, Screening
from server.rounds.summing import Summing
from server.rounds.testing import RoundResult, restored
from server.secure.summing import SecureSumming

_log = logging.getLogger("coterie")

# After so many questions without an answer a site is no more among the few who are asked; when everybody is, it is.
_MOST_QUESTIONS = 3


@dataclass(frozen=True)
class Setting:
    """Where a run takes place: what a site must be told of that, and who keeps checkpoints.

    Attributes
    ----------
    stamp
        What tells the run from every other one.
    folder
        Where simulated sites keep what they remember; empty: in their cache.
    keep
        Is told of each finished round and how to get the state after it, for a checkpoint.
    checkpoints
        Says which rounds the run may go back to.
    """

    stamp: str = ""
    folder: str = ""
    keep: Callable[[int, Callable[[], checkpoint.State]], None] = lambda round_number, state: None
    checkpoints: Callable[[], Sequence[int]] = tuple


class ClusteredStrategy(Strategy):
    """Independent federated averaging in every group of sites.

    Parameters
    ----------
    config
        The validated settings of the run.
    method
        How sites are grouped, and what happens in a round.
    initial
        The model every group starts from.
    audience
        Hears what happens.
    draw
        Further starting weights, for a method whose groups start from different ones; 0 is `initial`.
    setting
        Where the run takes place.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        initial: State,
        audience: Audience,
        draw: Callable[[int], State] | None = None,
        setting: Setting | None = None,
    ) -> None:
        self._config = config
        self._method = method
        self._audience = audience
        self._agreement = agreement_on(method.rule)
        self._draw = draw or (lambda number: initial)
        self._initial = self._travelling(initial)
        self._own = {name: array for name, array in initial.items() if name not in self._initial}
        self.setting = setting or Setting()
        self._members = Membership(config, method, initial, self._initial, audience, self._introduction_task)
        self._roster, self._groups = self._members.roster, self._members.groups
        self._screening = Screening(config, self._agreement, len(agreed_classes(config.data)), self._own)
        self._rule = method.training(config, self)
        # Where sites are grouped by something of its own, how they train is another matter.
        self._grouping = self._rule if method.grouping is None else method.grouping(config, self)
        self._migration = (
            None
            if migration_rule(config) == "off"
            else Migration(config, method, self._roster, self._ask_again, audience)
        )
        self._aggregation = Aggregation(config.aggregate)
        self._pace = pace_of(config)
        self._summing = (SecureSumming if config.aggregate.rule == "secure" else Summing)(config, audience)
        # How often each site has left a question of the method's unanswered, in a row.
        self._unanswered: Counter[str] = Counter()
        # The last round that counted of each site.
        self._accepted: dict[str, int] = {}
        # Of each site's last training: how many test samples it then named right, and of how many.
        self._held_figures: dict[str, tuple[int, int]] = {}
        # Sites that have their final model on their own disk.
        self._holders: set[str] = set()
        # What the last round left behind, until it is tested.
        self._result: RoundResult | None = None
        # Rounds that an earlier process has done.
        self._done = 0
        self._grid: Grid | None = None
        self._round: Round | None = None
        self._exchange: Exchange[Member, Reply] | None = None
        # Groups of whom nobody was drawn in this round: they keep their models, and nobody need be told.
        self._spared: set[int] = set()

    # --- from one process to another ---------------------------------------------------------------------------

    def state(self) -> checkpoint.State:
        """Everything that the rounds to come depend on."""
        return {
            "members": self._roster.state(),
            "groups": self._groups.state(),
            "outgrown": sorted(self._screening.outgrown),
            "accepted": self._accepted,
            "unanswered": dict(self._unanswered),
            "held": {site: list(figures) for site, figures in self._held_figures.items()},
            "result": None if self._result is None else self._result.state(),
            "migration": None if self._migration is None else self._migration.state(),
            "rule": self._rule.state(),
            "aggregation": self._aggregation.state(),
            "pace": self._pace.state(),
            "grouping": None if self._grouping is self._rule else self._grouping.state(),
        }

    def restore(self, round_number: int, state: checkpoint.State) -> None:
        """Take over what an earlier process knew after a round. Where the sites are now is found out by `rejoin`."""
        self._roster.restore(state["members"])
        self._groups.restore(state["groups"], self._initial)
        self._screening.outgrown = set(state["outgrown"])
        self._accepted = {str(site): int(last) for site, last in state["accepted"].items()}
        self._unanswered = Counter(state.get("unanswered", {}))
        self._held_figures = {site: (int(right), int(of)) for site, (right, of) in state.get("held", {}).items()}
        self._result = None if state["result"] is None else restored(state["result"], self._groups.models)
        if self._migration is not None:
            self._migration.restore(state["migration"])
        self._rule.restore(state["rule"])
        self._aggregation.restore(state["aggregation"])
        if state.get("pace"):
            self._pace.restore(state["pace"])
        if self._grouping is not self._rule:
            self._grouping.restore(state["grouping"])
        self._done = round_number

    def rejoin(self, grid: StreamingGrid) -> None:
        """Find out which node each member sits on now."""
        self._members.rejoin(grid, self._done)

    @property
    def members(self) -> list[Member]:
        """The sites of the run, by name."""
        return self._roster.members

    @property
    def models(self) -> dict[int, State]:
        """The model of each group."""
        return dict(self._groups.models)

    def summary(self) -> None:
        """Log what is about to happen; called by Flower before the first round."""
        groups = self._roster.groups()
        reference = self._rule.reference(self._initial)
        needed = len(groups) * self._aggregation.accumulator(0, reference, 1).bytes_needed(reference)
        _log.info(
            "%s: %d sites in %d group%s; averaging takes at most %s",
            self._method.title, len(self._roster), len(groups), "s" * (len(groups) > 1), megabytes(needed),
        )  # fmt: skip

    def _travelling(self, state: State) -> State:
        """Those tensors of the network that travel; the others are the sites' own."""
        return self._agreement.travelling(state, self._config)

    # --- what a method's rule may know and ask (server.methods.training.Federation) ------------------------------

    def sizes(self, group: int) -> dict[str, int]:
        """Training samples that each member of a group has declared."""
        return self._roster.sizes(group)

    def draw(self, number: int) -> State:
        """The n-th set of starting weights."""
        return self._travelling(self._draw(number))

    def own_start(self) -> State:
        """What of the first start is each site's own."""
        return self._own

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
        """Ask sites a question that the method declares, after a round; return their answers by name."""
        declared = agreement_on(self._method.name).questions[question]
        task = wire.Task(
            settings=self._config.for_site(),
            round_number=round_number,
            rounds=self._config.rounds,
            run=self.setting.stamp,
            rule=self._method.name,
            question=question,
        )
        packed = wire.pack_extras(extras)
        network = self._screening.network(self._initial)
        assert self._grid is not None
        connected = set(self._grid.get_node_ids())
        asked = [m for m in self._roster.members if m.node_id in connected and (sites is None or m.name in sites)]
        deadline = self._config.round.deadline
        if few:
            # Everybody waits for the answer of a few: not as long, and not again and again for who never answers.
            deadline = min(deadline, self._config.round.start_timeout)
            asked = [member for member in asked if self._unanswered[member.name] < _MOST_QUESTIONS]
        if not asked:
            return {}

        def read(member: Member, content: RecordDict) -> wire.Answered:
            limit = self._config.round.max_message_mb
            answer = wire.unpack_answered(content, declared=declared.up, network=network, limit_mb=limit)
            check(answer.extras)
            return answer

        exchange = Exchange(
            self._audience,
            "group" if round_number else "enrol",
            round_number,
            asked,
            lambda member: Question(wire.pack_task(task, extras=packed), "query.method"),
            read,
            timeout=deadline,
            limits="round.deadline" if deadline == self._config.round.deadline else "round.start_timeout",
        )
        found = ask(exchange, self._streaming(), deadline)
        answers = dict(sorted((member.name, answer.extras) for member, answer in found))
        for member in asked:
            self._unanswered[member.name] = 0 if member.name in answers else self._unanswered[member.name] + 1
        return answers

    # --- before training ---------------------------------------------------------------------------------------

    def group_sites(self, grid: StreamingGrid) -> None:
        """Get to know the sites, and form the groups."""
        self._grid = grid
        self._members.enrol(grid)
        rehearse = self._rehearse if self._config.cluster.choice == "rehearsal" else None
        self._members.form_groups(self._grouping, rehearse)

    def _rehearse(self, tree: MergeTree) -> Rehearsed | None:
        """Measure what the cuts of the tree bring."""
        members = self._roster.members
        widths = {member.fingerprint.dimension for member in members if isinstance(member.fingerprint, Signature)}
        rehearsal = Rehearsal(
            self._config,
            self._audience,
            self.setting.stamp,
            members,
            widths.pop(),
            len(agreed_classes(self._config.data)),
        )
        return rehearsal.run(self._streaming(), tree)

    def _ask_again(self, members: Sequence[Member], round_number: int) -> dict[str, wire.Introduction]:
        return self._members.ask_again(self._streaming(), members, round_number)

    # --- a round -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each site its group's model: to test what the last round made of it, and to train it."""
        self._grid = grid
        round_number = self._done + server_round
        if not self._groups.models:
            self.group_sites(self._streaming())
        elif round_number > 1:
            outgrown, self._screening.outgrown = self._screening.outgrown, set()
            self._members.renew_cards(self._streaming(), outgrown, round_number)
            self._members.admit_newcomers(self._streaming(), self._grouping, round_number)
        tested = self._result if self._result and self._is_tested(self._result.round_number) else None
        present = self._present("train", round_number)
        settings = self._config.train
        drawn = participants(present, settings.fraction, self._config.seed, round_number, settings.draw)
        self._spared = present.keys() - drawn.keys()
        plan = self._pace.plan(round_number, drawn, self._streaming(), self._rule.passes())
        test = {
            member.name
            for members in present.values()
            for member in self._testers(members, tested)
            if member.name not in plan.unasked
        }
        tasks = self._tasks(round_number, tested, test)
        self._round = self._round_of(round_number, tested)
        train = self._summing.agree(self._round, plan.train, tasks, self._streaming())
        chosen = [m for members in present.values() for m in members if m.name in train | test]

        def question(member: Member) -> Question:
            if member.name in train:
                return Question(tasks.content(member, trains=True), "train")
            assert tested is not None
            # Told of the round whose models are tested, as those are who test and train.
            return Question(tasks.content(member, trains=False), "evaluate", "evaluate", tested.round_number)

        read = self._round.reader(self._audience, train, test, self._pace.hold)
        self._exchange = self._exchange_of("train", round_number, chosen, question, read)
        self._pace.watch(self._streaming(), self._exchange, self._round.heard, self._read_late)
        return self._exchange.messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the updates into their groups' averages as they arrive; tell how the last round's models did."""
        assert self._round is not None
        assert self._exchange is not None
        assert self._grid is not None
        this, exchange = self._round, self._exchange
        for late in self._pace.due():
            self._take_late(late)
        for member, _ in exchange.answers(replies, self._grid):
            # A group whose sites have all been heard gives its accumulator back at once.
            if self._config.round.late != "next":
                this.close_heard(member, exchange.waiting, self._config.round.min_replies)
        if this.tested is not None:
            self._audience.tell(this.tested.told())
        self._summing.open(this, self._streaming())
        for kept in this.close_all(self._config.round.min_replies, self._summing.reasons):
            self._audience.tell(kept)
        self._accepted |= this.accepted
        if closed := self._pace.closed(exchange.waiting, self._streaming(), this.taken):
            self._audience.tell(closed)
        self._review(this)
        labels = {member.name: member.group for member in self._roster.members}
        models = dict(self._groups.models)
        self._audience.tell(RoundTrained(this.round_number, this.train_loss, labels, models))
        self._held_figures |= this.held
        self._result = RoundResult(this.round_number, this.train_loss, labels, models, dict(self._held_figures))
        self.setting.keep(this.round_number, self.state)
        return None, MetricRecord({"loss": this.train_loss, "sites": len(this.heard)})

    def _read_late(self, name: str, group: int, round_number: int, content: RecordDict) -> None:
        """Take in the answer of a site to a question of an earlier round."""
        assert self._round is not None
        member = self._roster[name]
        try:
            update = self._screening.update(member, content, self._groups.models[member.group])
        except UNUSABLE as error:
            self._audience.tell(SiteLeftOut("train", self._round.round_number, name, str(error)))
        else:
            self._take_late(Late(round_number, name, group, update.samples, update.state))

    def _take_late(self, late: Late) -> None:
        assert self._round is not None
        try:
            self._round.take_late(late)
        except RejectedUpdate as error:
            self._audience.tell(SiteLeftOut("train", self._round.round_number, late.site, str(error)))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Test the models of the last round; those of the others are tested by the round that follows."""
        self._grid = grid
        if self._done + server_round < self._config.rounds:
            self._exchange = None
            return []
        return self._testing().messages()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Pool the sites' statistics of the last round per group and overall."""
        if self._exchange is None or self._result is None:
            return None
        assert self._grid is not None
        for member, reply in self._exchange.answers(replies, self._grid):
            if reply is not None:
                self._took_test(member, reply)
        told, self._result = self._result.told(), None
        self._audience.tell(told)
        overall = told.overall
        return MetricRecord(
            {"accuracy": overall.accuracy, "macro_f1": overall.macro_f1, "mean_site_accuracy": told.mean_site_accuracy}
        )

    def _took_test(self, member: Member, reply: Reply) -> None:
        if reply.stored:
            self._held(member.name)

    def test_last(self, grid: StreamingGrid) -> None:
        """Test the models of the last round, if a resumed run has trained them all and not tested them."""
        self._grid = grid
        if self._result is not None:
            deadline = self._config.round.deadline
            self.aggregate_evaluate(0, grid.send_and_receive(self._testing().messages(), timeout=deadline))

    def _testing(self) -> Exchange[Member, Reply]:
        """Ask everybody to test the result of the last round."""
        assert self._result is not None
        result = self._result
        present = self._present("evaluate", result.round_number)
        chosen = [member for members in present.values() for member in self._testers(members, result)]
        test = {member.name for member in chosen}
        tasks = self._tasks(result.round_number, result, test)
        last = self._round_of(result.round_number, result)
        self._exchange = self._exchange_of(
            "evaluate",
            result.round_number,
            chosen,
            lambda member: self._test_question(member, tasks),
            last.reader(self._audience, set(), test),
        )
        return self._exchange

    def _test_question(self, member: Member, tasks: Tasks) -> Question:
        return Question(tasks.content(member, trains=False), "evaluate")

    def _exchange_of(
        self,
        stage: Stage,
        round_number: int,
        members: Sequence[Member],
        question: Callable[[Member], Question],
        read: Callable[[Member, RecordDict], Reply],
    ) -> Exchange[Member, Reply]:
        deadline = self._config.round.deadline
        return Exchange(self._audience, stage, round_number, members, question, read, timeout=deadline)

    def _round_of(self, round_number: int, tested: RoundResult | None) -> Round:
        return Round(
            round_number,
            self._rule,
            self._movers,
            self._groups,
            self._roster,
            self._screening,
            self._aggregation,
            tested,
        )

    def _tasks(self, round_number: int, tested: RoundResult | None, test: set[str]) -> Tasks:
        return Tasks(
            settings=self._config.for_site(),
            round_number=round_number,
            rounds=self._config.rounds,
            run=self.setting.stamp,
            rule=self._method.rule,
            method=self._method.name,
            training=self._rule,
            models=self._groups.models,
            tests=dict.fromkeys(test, tested.round_number) if tested is not None else {},
            accepted=self._accepted,
            checkpoints=tuple(self.setting.checkpoints()),
            folder=self.setting.folder,
            held=self._config.test.held,
            looks=self._migration is not None and self._migration.looks(round_number),
            part=self._summing.part,
        )

    def _introduction_task(self, round_number: int, member: Member | None) -> wire.Task:
        """What a site is told that is asked who it is."""
        # At an unknown node may be a member that is back: what it remembers of earlier rounds still counts.
        described = member.described if member else round_number
        return wire.Task(
            self._config.for_site(),
            round_number,
            self._config.rounds,
            self.setting.stamp,
            self._method.rule,
            checkpoints=tuple(self.setting.checkpoints()),
            folder=self.setting.folder,
            described=described if self._migration and self._migration.watches else None,
        )

    @property
    def _movers(self) -> list[Mover]:
        own: list[Mover] = [self._rule] if self._grouping is self._rule else [self._rule, self._grouping]
        return own if self._migration is None else [*own, self._migration]

    def _is_tested(self, round_number: int) -> bool:
        return round_number % self._config.test.every == 0 or round_number == self._config.rounds

    def _present(self, stage: Stage, round_number: int) -> dict[int, list[Member]]:
        """The connected members by group, so that groups finish one after the other; the others are left out."""
        assert self._grid is not None
        connected = set(self._grid.get_node_ids())
        present: dict[int, list[Member]] = {}
        for group, members in self._roster.groups().items():
            for member in members:
                if member.node_id in connected:
                    present.setdefault(group, []).append(member)
                else:
                    self._audience.tell(SiteLeftOut(stage, round_number, member.name, "not connected"))
        return present

    def _testers(self, members: list[Member], result: RoundResult | None) -> list[Member]:
        """Who tests the result of a round: who was there, and may have something to test on."""
        if result is None:
            return []
        return [m for m in members if m.name in result.labels and self._screening.may_test(m)]

    def _review(self, this: Round) -> None:
        """Move sites: as the method's own rule says, then by migration."""
        there = set(self._groups.models)
        self._move(self._grouping, this.round_number)
        for group in sorted(there.intersection(self._roster.labels.tolist()) - this.closed - self._spared):
            reason = self._summing.reasons.get(group, "")
            self._audience.tell(GroupKept(this.round_number, group, 0, self._config.round.min_replies, reason))
        if self._migration is not None:
            self._move(self._migration, this.round_number)
            for group in self._groups.retire(this.round_number):
                self._aggregation.forget(group)
                self._rule.forget(group)

    def _move(self, mover: Mover, round_number: int) -> None:
        groups = {group: [member.name for member in members] for group, members in self._roster.groups().items()}
        for move in mover.review(round_number, groups):
            mover.settle(move, self._groups.carry_out(move, round_number), round_number)

    # --- after the last round ----------------------------------------------------------------------------------

    def personalise(self, grid: StreamingGrid) -> None:
        """After the last round, let every site make a model of its own from its group's, and tell how that does."""
        self._grid = grid
        present = self._present("personalise", self._config.rounds)
        members = [m for of_group in present.values() for m in of_group if self._screening.may_test(m)]
        tasks = self._tasks(self._config.rounds, None, set())
        for name in sorted(personalise(grid, self._config, members, tasks, self._screening, self._audience)):
            self._held(name)

    def hand_out(self, grid: StreamingGrid) -> None:
        """Send every site that keeps models, and has none of its own making, its group's; who fails is named."""
        self._grid = grid
        keepers = {m.name for m in self._roster.members if m.card.keeps and m.name not in self._holders}
        if not self._groups.models or not keepers:
            return
        present = self._present("keep", self._config.rounds)
        members = [m for of_group in present.values() for m in of_group if m.name in keepers]
        tasks = self._tasks(self._config.rounds, None, set())
        for name in hand_out(grid, self._config, members, tasks, self._audience):
            self._held(name)

    def _held(self, name: str) -> None:
        """Note that a site has its final model on its own disk."""
        self._holders.add(name)
        self._audience.tell(ModelKept(name))

    def _streaming(self) -> StreamingGrid:
        assert self._grid is not None
        if isinstance(self._grid, StreamingGrid):
            return self._grid
        limits = self._config.round
        return StreamingGrid(self._grid, deadline=limits.deadline, in_flight=limits.in_flight)
