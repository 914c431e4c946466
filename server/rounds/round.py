"""One round: replies are screened, tested models are noted, updates become terms of their group's average."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flwr.app import RecordDict

from common import wire
from common.config import Config
from common.extras import Network
from common.methods import Agreement
from common.site_card import Spending
from common.state import State
from server.aggregation import Accumulator, Aggregation, RejectedUpdate, Screen
from server.groups import Groups
from server.history.events import Audience, GroupKept, MemoryLost, SiteLeftOut
from server.methods.training import Contribution, Mover, TrainingRule
from server.roster import Member, Roster
from server.rounds.pace import Late, discounted
from server.rounds.testing import RoundResult

# A site may train on more samples than it declared, but not on wildly more: the fixed-point averages are scaled by what
# was declared. Where data are expected to change there is more room. Whoever outgrows that is asked anew.
_GROWTH, _GROWTH_IF_CHANGING = 2, 16


@dataclass(frozen=True)
class Reply:
    """What a site answered in a round, read and taken in.

    `seconds` is what it cost the site; `stored`: it has the model it tested on its own disk now, for good.
    `spending`: of its privacy budget, if it has one.
    """

    seconds: float
    stored: bool = False
    spending: Spending | None = None


class Screening:
    """Holds what sites send against what they declared; `own` are tensors of the network that are each site's own.

    Attributes
    ----------
    outgrown
        Sites that have far more data than they declared.
    growth
        How many times as many samples as declared a site may have.
    """

    def __init__(self, config: Config, agreement: Agreement, classes: int, own: State | None = None) -> None:
        self._limit_mb, self._precision = config.round.max_message_mb, config.wire.precision
        self._classes = classes
        self._own = own or {}
        self._up = agreement.up
        self._changing = config.data.watch or bool(config.drift)
        self.growth = _GROWTH_IF_CHANGING if self._changing else _GROWTH
        self.outgrown: set[str] = set()

    def network(self, model: State) -> Network:
        """What the extra arrays of a site are held against."""
        return Network.of(model, self._classes, self._own)

    def may_test(self, member: Member) -> bool:
        """Whether a site may have something to test on: who had nothing is not asked, unless that may have changed."""
        return bool(member.card.test_samples) or self._changing

    def update(self, member: Member, content: RecordDict, model: State) -> wire.Update:
        """Read an update of a site that was sent this model."""
        update = wire.unpack_update(
            content,
            declared=self._up,
            network=self.network(model),
            limit_mb=self._limit_mb,
            precision=self._precision,
        )
        self._check_growth(member, update.samples, member.card.train_samples, "training")
        return replace(update, state=wire.lengthen(update.state, model, self._precision))

    def evaluation(self, member: Member, content: RecordDict) -> wire.Evaluation:
        """Read a test; one on another number of samples than the site can have is refused."""
        evaluation = wire.unpack_evaluation(content, classes=self._classes, limit_mb=self._limit_mb)
        count, declared = int(evaluation.statistics.confusion.sum()), member.card.test_samples
        if not count and declared and not self._changing:
            raise wire.WireError(f"tests on nothing after declaring {declared} samples")
        self._check_growth(member, count, max(declared, self._changing), "test")
        return evaluation

    def _check_growth(self, member: Member, count: int, declared: int, part: str) -> None:
        if count > self.growth * declared:
            self.outgrown.add(member.name)
            raise wire.WireError(f"claims {count} {part} samples after declaring {declared}")


class Round:
    """The updates of one round, group by group.

    Parameters
    ----------
    round_number
        Of the updates.
    rule, movers
        What an update becomes, and who looks at it.
    groups, roster, screening, aggregation
        Of the run.
    tested
        The result of the last round, if it is tested along.
    """

    def __init__(
        self,
        round_number: int,
        rule: TrainingRule,
        movers: Sequence[Mover],
        groups: Groups,
        roster: Roster,
        screening: Screening,
        aggregation: Aggregation,
        tested: RoundResult | None,
    ) -> None:
        self.round_number = round_number
        self.tested = tested
        # Groups whose average was closed, whether it became a model or not.
        self.closed: set[int] = set()
        # Sites whose update entered a mean that became a model.
        self.accepted: dict[str, int] = {}
        # What sites held after their training: test samples named right, and of how many.
        self.held: dict[str, tuple[int, int]] = {}
        self._rule, self._movers = rule, movers
        self._groups, self._roster, self._screening = groups, roster, screening
        self._aggregation = aggregation
        self._averages: dict[int, Accumulator] = {}
        self._screens: dict[int, Screen] = {}
        # The most samples that an update of each group counts for, where there is a limit.
        self._caps: dict[int, int | None] = {}
        self._contributors: dict[int, list[str]] = {}
        # The rounds in which updates that came late were made, by site.
        self.taken: dict[str, int] = {}
        self._finished: dict[int, State] = {}
        self._kept: list[GroupKept] = []
        self._losses: dict[str, tuple[float, int]] = {}
        # What each of those who train was offered.
        self._offers: dict[str, set[int]] = {}

    @property
    def heard(self) -> Collection[str]:
        """Whose updates of this round were taken in."""
        return self._losses.keys()

    @property
    def train_loss(self) -> float:
        """Mean over all samples that were trained on; NaN: there were none."""
        samples = sum(count for _, count in self._losses.values())
        # Summed by fsum, which is exact, so that the order of arrival leaves no trace.
        return math.fsum(loss * count for loss, count in self._losses.values()) / samples if samples else math.nan

    def reader(
        self, audience: Audience, train: set[str], test: set[str], hold: Callable[[Late], bool] = lambda late: False
    ) -> Callable[[Member, RecordDict], Reply]:
        """Return what reads the replies of those who train and those who test, and takes them in.

        An update that `hold` keeps is not of this round.
        """
        everybody = set(self._groups.models)
        self._offers = {
            name: everybody if self._rule.offers_all else {self._roster[name].group} for name in sorted(train)
        }

        def read(member: Member, content: RecordDict) -> Reply:
            seconds, stored, spending = 0.0, False, None
            if member.name in test:
                try:
                    evaluation = self._take_test(member, content)
                    seconds, stored = evaluation.seconds, evaluation.stored
                except wire.WireError as error:
                    if member.name not in train:
                        raise
                    assert self.tested is not None
                    audience.tell(SiteLeftOut("evaluate", self.tested.round_number, member.name, str(error)))
            if member.name in train:
                update = self._screening.update(member, content, self._groups.models[member.group])
                if not hold(Late(self.round_number, member.name, member.group, update.samples, update.state)):
                    self._take_update(member, update)
                if update.fresh:
                    audience.tell(MemoryLost(self.round_number, member.name))
                seconds, spending = seconds + update.seconds, update.spending
            return Reply(seconds, stored, spending)

        return read

    def _take_test(self, member: Member, content: RecordDict) -> wire.Evaluation:
        assert self.tested is not None
        evaluation = self._screening.evaluation(member, content)
        self.tested.add(member.name, evaluation.statistics, evaluation.shared)
        return evaluation

    def _take_update(self, member: Member, update: wire.Update) -> None:
        group = self._rule.trained(member.group, update.extras)
        before = self._groups.models[group]
        weight = self._weight(group, update.samples)
        contribution = Contribution(
            self.round_number,
            member.name,
            group,
            weight,
            before,
            update.state,
            update.extras,
            update.loss,
            update.changed,
        )
        average = self._open(group)
        if not self._rule.is_plain:
            # What the accumulator is given, and looks at, is not what the site sent.
            if group not in self._screens:
                self._screens[group] = Screen(before)
            self._screens[group].check(update.state, update.samples)
        average.add(self._rule.term(contribution), weight)
        for mover in self._movers:
            mover.observe(contribution)
        self._contributors.setdefault(group, []).append(member.name)
        self._losses[member.name] = (update.loss, update.samples)
        if update.held is not None:
            self.held[member.name] = update.held

    def take_late(self, late: Late) -> None:
        """Add an update of an earlier round to its group's average, with less weight; nobody else looks at it.

        `RejectedUpdate`: it cannot be a part of that.
        """
        if self._roster[late.site].group != late.group:
            raise RejectedUpdate(f"its update of round {late.round_number} is of a group that it has left")
        age = self.round_number - late.round_number
        self._open(late.group).add(late.state, discounted(self._weight(late.group, late.samples), age))
        self._contributors.setdefault(late.group, []).append(late.site)
        self.taken[late.site] = late.round_number

    def _open(self, group: int) -> Accumulator:
        if group not in self._averages:
            reference = self._rule.reference(self._groups.models[group])
            self._averages[group] = self._aggregation.accumulator(group, reference, self.capacity(group))
        return self._averages[group]

    def _weight(self, group: int, samples: int) -> int:
        """The samples that an update of a group counts for."""
        most = self.most(group)
        return samples if most is None else min(samples, most)

    def average(self, group: int) -> Accumulator | None:
        """What has taken in the updates of a group; None: there were none, or it is closed."""
        return self._averages.get(group)

    def contributors(self, group: int) -> Sequence[str]:
        """Whose updates it has taken in."""
        return self._contributors.get(group, ())

    def most(self, group: int) -> int | None:
        """The most samples that an update of a group counts for; None: there is no limit."""
        if not self._aggregation.is_capped:
            return None
        if group not in self._caps:
            self._caps[group] = self._aggregation.most(self._roster.sizes(group).values())
        return self._caps[group]

    def capacity(self, group: int) -> int:
        """An upper bound of the samples behind a group's average, known before the first reply."""
        offered = self._roster.groups() if self._rule.offers_all else (group,)
        return self._screening.growth * sum(sum(self._roster.sizes(one).values()) for one in offered)

    def close_heard(self, member: Member, waiting: Iterable[Member], needed: int) -> None:
        """Close the averages that a member was the last to be waited for."""
        if not self._aggregation.closes_early:
            return
        waiting = list(waiting)
        for group in sorted(self._offers.get(member.name, ())):
            # Members come group by group, so one of the first who are waited for is of this group, if any is.
            if not any(group in self._offers.get(one.name, ()) for one in waiting):
                self._close(group, needed)

    def close_all(self, needed: int, reasons: Mapping[int, str]) -> Iterator[GroupKept]:
        """Close all averages, make them the groups' models, and yield who had too few updates for that.

        `reasons` say why by group, where there is more to it than that.
        """
        for group in sorted(self._averages):
            self._close(group, needed)
        self._groups.models |= self._finished
        for kept in self._kept:
            yield replace(kept, reason=reasons.get(kept.group, ""))

    def _close(self, group: int, needed: int) -> None:
        """Turn an accumulator into the group's new model, or keep the old one when too few sites contributed."""
        average = self._averages.pop(group, None)
        if average is None:
            return
        self.closed.add(group)
        if average.count < needed:
            self._kept.append(GroupKept(self.round_number, group, average.count, needed))
            return
        before, samples = self._groups.models[group], average.samples
        self._aggregation.note(group, average)
        self._finished[group] = self._rule.close(group, before, average.result(), samples)
        self.accepted |= {site: self.taken.get(site, self.round_number) for site in self._contributors[group]}
