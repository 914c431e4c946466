"""The rehearsal: before training, heads are trained for other numbers of groups, and what they bring is measured.

For the cuts of the tree of merges into 1 … k_max groups each group has a linear head on the frozen encoder, trained by
FedAvg in some rounds of small messages. A site gets the heads of the groups that it is in, one for each cut, but each
only once: from one cut to the next only one group is parted in two. One group per site, which is measured too, needs no
message: a site trains alone by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from common import wire
from common.config import Config
from common.extras import InvalidExtras, Network
from common.methods.rehearsal import AGREEMENT, HEAD, LOSSES, MOST_LOSS, PARTS, RULE, STEP, TEST, TRAIN, Settings
from common.randomness import generator
from common.state import State
from server.aggregation import GroupAverage, Screen
from server.asking.grid import StreamingGrid
from server.asking.stage import Exchange, Question, ask
from server.clustering import MergeTree, Rehearsed, fewest_as_good
from server.history.events import Audience, RehearsalStarted
from server.roster import Member

# What the cost is told by beforehand: products per second of a site, and seconds of an exchange with small messages.
_SPEED, _EXCHANGE = 2e9, 0.3


@dataclass(frozen=True)
class Plan:
    """Which heads there are, and who trains which.

    Attributes
    ----------
    ks
        The cuts whose groups have heads, increasing.
    members
        The sites of each head: groups of two sites or more, each once.
    heads : int64[N, len(ks)]
        The head of each site at each cut; -1 where it is alone.
    """

    ks: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    heads: NDArray[np.int64]

    @classmethod
    def of(cls, tree: MergeTree, k_max: int) -> Plan:
        """All cuts up to `k_max` groups, without that of one group for each site."""
        ks = tuple(range(1, min(k_max, tree.sites - 1) + 1))
        numbers: dict[tuple[int, ...], int] = {}
        heads = np.full((tree.sites, len(ks)), -1)
        for column, k in enumerate(ks):
            labels = tree.cut(k)
            for group in range(k):
                sites = tuple(np.flatnonzero(labels == group).tolist())
                if len(sites) > 1:
                    heads[list(sites), column] = numbers.setdefault(sites, len(numbers))
        return cls(ks, tuple(numbers), heads)

    def of_site(self, site: int) -> list[int]:
        """The heads that a site trains, in order."""
        return [int(head) for head in np.unique(self.heads[site]) if head >= 0]

    @property
    def most(self) -> int:
        """Heads that go to the site with the most of them."""
        return max(len(self.of_site(site)) for site in range(len(self.heads)))


class Rehearsal:
    """One rehearsal of one run.

    Parameters
    ----------
    config, audience, stamp
        Of the run.
    members
        The sites, in the order of the tree's.
    width, classes
        Of an embedding, and of the class list.
    """

    def __init__(
        self, config: Config, audience: Audience, stamp: str, members: Sequence[Member], width: int, classes: int
    ) -> None:
        self._config, self._audience, self._stamp = config, audience, stamp
        self._members = list(members)
        self._position = {member.name: place for place, member in enumerate(self._members)}
        # Who has answered so far: nobody waits for the same site twice, and who trained in part is not tested.
        self._staying = list(self._members)
        self._shape = (classes, width + 1)
        self._settings = config.of(Settings)

    def run(self, grid: StreamingGrid, tree: MergeTree) -> Rehearsed | None:
        """Train the heads, test them, and choose; None: nobody could be tested, or there is nothing to choose."""
        if tree.sites < 2:
            return None
        plan = Plan.of(tree, self._config.cluster.k_max)
        heads = [{"weights": np.zeros((self._folds(plan), *self._shape), np.float32)} for _ in plan.members]
        self._audience.tell(self._cost(plan))
        for number in range(1, self._settings.rounds + 1):
            heads = self._round(grid, plan, heads, number)
        tested = dict(self._tested(grid, plan, heads))
        if not tested:
            return None
        sites = sorted(tested)
        losses = np.array([[*tested[site][0], tested[site][1]] for site in sites])
        samples = np.array([tested[site][2] for site in sites])
        rng = generator(self._config.seed, "rehearsal")
        return fewest_as_good((*plan.ks, tree.sites), losses, samples, rng)

    def _folds(self, plan: Plan) -> int:
        once = 4 * int(np.prod(self._shape)) * plan.most * self._settings.rounds
        return int(np.clip(self._settings.megabytes * 1e6 // once, 1, PARTS))

    def _cost(self, plan: Plan) -> RehearsalStarted:
        folds = self._folds(plan)
        weights = int(np.prod(self._shape)) * plan.most * folds
        largest = max(member.card.train_samples for member in self._members)
        products = 4 * largest * (1 - 1 / PARTS) * weights * self._settings.rounds
        return RehearsalStarted(
            ks=(*plan.ks, len(self._members)),
            rounds=self._settings.rounds,
            folds=folds,
            bytes_each_way=4 * weights * self._settings.rounds,
            seconds=products / _SPEED + _EXCHANGE * (self._settings.rounds + 1),
        )

    def _round(self, grid: StreamingGrid, plan: Plan, heads: Sequence[State], number: int) -> list[State]:
        sizes = [member.card.train_samples for member in self._members]
        averages = [
            GroupAverage(head, sum(sizes[site] for site in sites))
            for head, sites in zip(heads, plan.members, strict=True)
        ]
        screens = [Screen(head) for head in heads]

        def read(member: Member, content: RecordDict) -> wire.Answered:
            answer = self._read(TRAIN, content)
            own = plan.of_site(self._position[member.name])
            if set(answer.extras) != {f"{HEAD}.{head}" for head in own}:
                raise InvalidExtras("it sends other heads than it was sent")
            # All before the first is added: who is left out counts nowhere.
            for head in own:
                screens[head].check(answer.extras[f"{HEAD}.{head}"], member.card.train_samples)
            for head in own:
                averages[head].add(answer.extras[f"{HEAD}.{head}"], member.card.train_samples)
            return answer

        step = wire.pack_extras({STEP: {"number": np.array(number, np.int64)}})
        exchange = self._exchange(TRAIN, step, self._staying, plan, heads, read)
        answered = {member.name for member, _ in ask(exchange, grid, self._config.round.deadline)}
        self._staying = [member for member in self._staying if member.name in answered]
        return [average.result() if average.count else head for average, head in zip(averages, heads, strict=True)]

    def _tested(
        self, grid: StreamingGrid, plan: Plan, heads: Sequence[State]
    ) -> Iterator[tuple[int, tuple[list[float], float, int]]]:
        """Sites that could be tested: their losses at every cut, alone, and the samples they are over."""

        def read(member: Member, content: RecordDict) -> wire.Answered:
            answer = self._read(TEST, content)
            found = answer.extras[LOSSES]
            if len(found["heads"]) != len(plan.of_site(self._position[member.name])):
                raise InvalidExtras(f"it sends {len(found['heads'])} losses for other heads than it was sent")
            samples = int(found["samples"])
            if samples > member.card.train_samples:
                raise InvalidExtras(f"it tested on {samples} samples and has {member.card.train_samples}")
            if max([float(found["alone"]), *found["heads"].tolist()]) > MOST_LOSS * samples:
                raise InvalidExtras(f"a mean log loss is more than {MOST_LOSS:g}")
            return answer

        exchange = self._exchange(TEST, {}, self._staying, plan, heads, read)
        for member, answer in ask(exchange, grid, self._config.round.deadline):
            site = self._position[member.name]
            found = answer.extras[LOSSES]
            alone = float(found["alone"])
            by_head = dict(zip(plan.of_site(site), found["heads"].tolist(), strict=True)) | {-1: alone}
            yield site, ([by_head[int(head)] for head in plan.heads[site]], alone, int(found["samples"]))

    def _exchange(
        self,
        question: str,
        beside: Mapping[str, ArrayRecord],
        members: Sequence[Member],
        plan: Plan,
        heads: Sequence[State],
        read: Callable[[Member, RecordDict], wire.Answered],
    ) -> Exchange[Member, wire.Answered]:
        task = wire.Task(self._config.for_site(), 0, self._config.rounds, self._stamp, RULE, question=question)
        packed = [wire.pack_arrays(head) for head in heads]

        def content(member: Member) -> Question:
            own = plan.of_site(self._position[member.name])
            extras = {f"{HEAD}.{head}": packed[head] for head in own} | dict(beside)
            return Question(wire.pack_task(task, extras=extras), "query.method")

        timeout = self._config.round.deadline
        return Exchange(self._audience, "rehearse", 0, members, content, read, timeout=timeout)

    def _read(self, question: str, content: RecordDict) -> wire.Answered:
        return wire.unpack_answered(
            content,
            declared=AGREEMENT.questions[question].up,
            network=Network({}, self._shape[0]),
            limit_mb=self._config.round.max_message_mb,
        )
