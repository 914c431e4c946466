"""Who is waited for in a round, and what becomes of an update that comes after its round has closed.

In a federation that is a matter of what comes when. In a simulation with a virtual clock it is known before anybody is
asked, because the seed says how long each site takes: so nothing depends on how busy this machine is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict

from common.config import Config, SimulateSettings
from common.randomness import generator
from common.state import State
from server.asking.grid import StreamingGrid, Watch
from server.asking.stage import Exchange
from server.history.events import RoundClosed
from server.roster import Member

Drawn = Mapping[int, Sequence[Member]]


@dataclass(frozen=True)
class Late:
    """An update of an earlier round: which site made it there, as a member of which group, from how many samples."""

    round_number: int
    site: str
    group: int
    samples: int
    state: State


def discounted(samples: int, rounds: int) -> int:
    """The samples that an update counts for which is so many rounds old: (1 + τ)^−½ of them (FedAsync, polynomial)."""
    return max(1, round(samples / math.sqrt(1 + rounds)))


@dataclass(frozen=True)
class Plan:
    """Who does what in a round.

    Attributes
    ----------
    train
        Who is asked to train, by group.
    unasked
        Who is asked for nothing.
    """

    train: dict[int, list[Member]]
    unasked: Collection[str] = ()


class Pace:
    """Everybody is waited for. What need not is a subclass.

    A round is `plan`, then `watch`, while its answers come `hold`, and in the end `closed`.
    """

    def plan(self, round_number: int, drawn: Drawn, grid: StreamingGrid, passes: float) -> Plan:
        """Say who of those drawn trains; `passes` is how often the rule goes over a site's samples in an epoch."""
        return Plan({group: list(members) for group, members in drawn.items()})

    def watch(
        self, grid: StreamingGrid, exchange: Exchange[Member, Any], heard: Collection[str], late: LateAnswer
    ) -> None:
        """Before the messages go out: `heard` grows by the sites whose updates are in, `late` hears of old ones."""

    def due(self) -> Sequence[Late]:
        """Updates of earlier rounds that come in this one."""
        return ()

    def hold(self, late: Late) -> bool:
        """Whether an update comes after its round has closed; then it is kept until it is due."""
        return False

    def closed(self, waiting: Iterable[Member], grid: StreamingGrid, taken: Mapping[str, int]) -> RoundClosed | None:
        """Tell how the round closed: who had not answered then, and which late updates entered it."""
        return None

    def state(self) -> dict[str, Any]:
        """What must be remembered from round to round."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier `state` said."""


# Hears the answer of a site, by name, to a question of an earlier round, as a member of the group it was in then.
LateAnswer = Callable[[str, int, int, RecordDict], None]


def pace_of(config: Config) -> Pace:
    """How a run is paced."""
    if config.simulate.clock:
        return VirtualPace(config)
    return RealPace(config) if config.round.enough < 1 else Pace()


def needed(share: float, members: int, least: int) -> int:
    """How many of a group's members must have answered: so large a share of them, and `least`, if there are as many."""
    # Rounded first: 0.55 of 20 are 11, and not a billionth more.
    return min(members, max(least, math.ceil(round(share * members, 9))))


@dataclass(frozen=True)
class _Owing:
    site: str
    group: int
    round_number: int


class RealPace(Pace):
    """By the clock on the wall. Who still owes an answer is not asked for another one."""

    def __init__(self, config: Config) -> None:
        self._enough, self._least = config.round.enough, config.round.min_replies
        self._takes = config.round.late == "next"
        # By node. A run that goes on in another process knows nothing of them, and asks everybody.
        self._owing: dict[int, _Owing] = {}
        self._number = 0
        self._groups: dict[str, int] = {}
        self._needed: dict[int, int] = {}
        self._busy: tuple[str, ...] = ()

    def plan(self, round_number: int, drawn: Drawn, grid: StreamingGrid, passes: float) -> Plan:
        """Leave out who is still at work on an earlier round."""
        self._number, owing = round_number, grid.owing
        self._owing = {node: one for node, one in self._owing.items() if node in owing}
        free = {
            group: [member for member in members if member.node_id not in owing] for group, members in drawn.items()
        }
        busy = {one.site for one in self._owing.values()}
        self._busy = tuple(sorted(busy))
        self._groups = {member.name: group for group, members in free.items() for member in members}
        self._needed = {
            group: min(len(free[group]), needed(self._enough, len(members), self._least))
            for group, members in drawn.items()
        }
        return Plan({group: members for group, members in free.items() if members}, busy)

    def watch(
        self, grid: StreamingGrid, exchange: Exchange[Member, Any], heard: Collection[str], late: LateAnswer
    ) -> None:
        """End the round once the share of every group is in, or nobody is left who could add to it."""

        before = len(grid.owing)

        def enough() -> bool:
            if not self._groups:
                # All are busy: there is nothing to wait for but the first of them.
                return len(grid.owing) < before or not grid.owing
            open_ = Counter(self._groups[member.name] for member in exchange.waiting if member.name in self._groups)
            done = Counter(self._groups[name] for name in heard)
            return all(done[group] >= count or not open_[group] for group, count in self._needed.items())

        def answered(node: int, reply: Message) -> None:
            owed = self._owing.pop(node, None)
            if self._takes and owed is not None and not reply.has_error():
                late(owed.site, owed.group, owed.round_number, reply.content)

        grid.watch(Watch(enough, answered))

    def closed(self, waiting: Iterable[Member], grid: StreamingGrid, taken: Mapping[str, int]) -> RoundClosed:
        """Note who owes an answer."""
        owing = grid.owing
        late = [member for member in waiting if member.node_id in owing]
        for member in late:
            self._owing[member.node_id] = _Owing(member.name, member.group, self._number)
        return RoundClosed(self._number, tuple(sorted(one.name for one in late)), self._busy, dict(taken))


@dataclass
class _Task:
    """What a site is busy with until `due`; `update` comes of it then, if it counts."""

    due: float
    update: Late | None = None


@dataclass(frozen=True)
class VirtualClock:
    """How long sites take: a function of the seed, their samples and the round."""

    settings: SimulateSettings
    seed: int

    def seconds(self, site: str, samples: float, round_number: int) -> float:
        """Seconds in which a site trains on so many samples, epochs and passes counted; lognormal round the usual."""
        lasting = generator(self.seed, "speed", site).normal()
        passing = generator(self.seed, "speed of a round", site, round_number).normal()
        exponent = self.settings.spread * lasting + self.settings.jitter * passing
        return self.settings.clock * samples / 1000 * math.exp(exponent)


class VirtualPace(Pace):
    """By a virtual clock.

    Who is late is known beforehand. What would be dropped is not computed at all; what would come later is computed in
    its own round and held back. Tests take no virtual time, and all sites are tested in every round: accuracies over
    the clock are then of the same sites, whoever was late.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._now, self._number = 0.0, 0
        # What each site is busy with that does not answer in time.
        self._tasks: dict[str, _Task] = {}
        # Of this round: who is late, whose update is kept until it is due, who is busy, and which updates are due.
        self._late: tuple[str, ...] = ()
        self._held: set[str] = set()
        self._busy: tuple[str, ...] = ()
        self._due: tuple[Late, ...] = ()

    def plan(self, round_number: int, drawn: Drawn, grid: StreamingGrid, passes: float) -> Plan:
        """Say when the round closes, and who is late then."""
        self._number, start, limits = round_number, self._now, self._config.round
        clock, times = VirtualClock(self._config.simulate, self._config.seed), self._config.train.epochs * passes
        takes = {
            member.name: clock.seconds(member.name, member.card.train_samples * times, round_number)
            for members in drawn.values()
            for member in members
            if member.name not in self._tasks
        }
        closes = start + self._lasts(drawn, takes)
        late = {site for site, seconds in takes.items() if start + seconds > closes}
        self._busy = tuple(sorted(self._tasks))
        due = sorted(site for site, task in self._tasks.items() if task.due <= closes)
        self._due = tuple(update for site in due if (update := self._tasks.pop(site).update))
        ends = {site: start + min(takes[site], limits.deadline) for site in late}
        self._tasks |= {site: _Task(end) for site, end in ends.items() if end > closes}
        # An answer that comes after the deadline is lost.
        self._held = {site for site in late if limits.late == "next" and takes[site] <= limits.deadline}
        self._late, self._now = tuple(sorted(late)), closes
        on_time = takes.keys() - late
        train = {
            group: asked
            for group, members in drawn.items()
            if (asked := [member for member in members if member.name in on_time | self._held])
        }
        return Plan(train)

    def _lasts(self, drawn: Drawn, takes: Mapping[str, float]) -> float:
        """Seconds until the round closes."""
        limits = self._config.round
        lasts = []
        for members in drawn.values():
            asked = sorted(takes[member.name] for member in members if member.name in takes)
            count = min(len(asked), needed(limits.enough, len(members), limits.min_replies))
            lasts += asked[count - 1 : count] if count else []
        if not lasts:
            # All are busy: there is nothing to wait for but the first of them.
            lasts = [min((task.due for task in self._tasks.values()), default=self._now) - self._now]
        return min(max(lasts), limits.deadline)

    def due(self) -> Sequence[Late]:
        """Of sites that were late, by name."""
        return self._due

    def hold(self, late: Late) -> bool:
        """Keep what comes late."""
        if late.site not in self._held:
            return False
        self._tasks[late.site].update = late
        return True

    def closed(self, waiting: Iterable[Member], grid: StreamingGrid, taken: Mapping[str, int]) -> RoundClosed:
        """Tell the time."""
        return RoundClosed(self._number, self._late, self._busy, dict(taken), self._now)

    def state(self) -> dict[str, Any]:
        """The time, and who is busy with what."""
        return {
            "now": self._now,
            "tasks": [
                {"site": site, "due": task.due, "update": None if task.update is None else dict(vars(task.update))}
                for site, task in sorted(self._tasks.items())
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._now = float(state["now"])
        self._tasks = {
            entry["site"]: _Task(float(entry["due"]), None if entry["update"] is None else Late(**entry["update"]))
            for entry in state["tasks"]
        }
