"""A method's server half at work on plain arrays: the rounds of a federation without Flower, torch or messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from common.config import Config, parse
from common.site_card import SiteCard
from common.state import Extras, State
from server.aggregation import GroupAverage
from server.asking.stage import UNUSABLE
from server.methods import get_method
from server.methods.training import Contribution, GroupingRule, TrainingRule
from server.roster import Member


@dataclass
class Sites:
    """What a rule may know of the federation, and how its sites answer.

    `declared`: samples by site; `start`: the common start; `answer`: makes a site's answer from question, what went
    down and its name; None: it is silent.
    """

    declared: dict[str, int] = field(default_factory=dict)
    start: State = field(default_factory=dict)
    answer: Callable[[str, Extras, str], Extras | None] | None = None
    models: dict[int, State] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    few: list[bool] = field(default_factory=list)
    own: State = field(default_factory=dict)

    def own_start(self) -> State:
        return self.own

    @property
    def members(self) -> list[Member]:
        return [
            Member(SiteCard(name, samples, 0, (samples, 0), 0, ()), 0, None)
            for name, samples in sorted(self.declared.items())
        ]

    def sizes(self, group: int) -> dict[str, int]:
        return dict(self.declared)

    def draw(self, number: int) -> State:
        assert number == 0, "this rule draws no other starts"
        return self.start

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
        assert self.answer is not None, "this rule asks nothing"
        asked = sorted(self.declared if sites is None else sites)
        self.asked.append(asked)
        self.few.append(few)
        answers = {}
        for site in asked:
            answer = self.answer(question, extras, site)
            if answer is not None:
                with suppress(*UNUSABLE):
                    check(answer)
                    answers[site] = answer
        return answers


def carry_out(rule: GroupingRule, round_number: int, home: dict[str, int]) -> dict[str, int]:
    """Let a rule review a round, carry out what it says, and return the groups; nobody is moved from elsewhere."""
    groups: dict[int, list[str]] = {}
    for site, group in sorted(home.items()):
        groups.setdefault(group, []).append(site)
    home = dict(home)
    for move in rule.review(round_number, groups):
        group = max(home.values()) + 1 if move.target is None else move.target
        assert all(home[site] == move.origin for site in move.sites)
        home |= dict.fromkeys(move.sites, group)
        rule.settle(move, group, round_number)
    return home


def rule_of(method: str, sizes: Mapping[str, int], **settings: object) -> TrainingRule:
    """The server's half of a method, for sites of these sizes."""
    return get_method(method).training(config_of(method, **settings), Sites(dict(sizes)))


def config_of(method: str, **settings: object) -> Config:
    values = {key.replace("__", "."): value for key, value in settings.items()}
    return parse({"method": method, "train.epochs": 100, "train.batch_size": 2, **values})


@dataclass(frozen=True)
class Reply:
    """What one site made of a round."""

    after: State
    samples: int
    extras: Extras = field(default_factory=dict)


def close_round(rule: TrainingRule, before: State, replies: Mapping[str, Reply], round_number: int = 1) -> State:
    """Take the replies in, in their order, and return the group's new model."""
    average = GroupAverage(rule.reference(before), 2 * sum(reply.samples for reply in replies.values()))
    for site, reply in replies.items():
        contribution = Contribution(round_number, site, 0, reply.samples, before, reply.after, reply.extras)
        average.add(rule.term(contribution), reply.samples)
        rule.observe(contribution)
    return rule.close(0, before, average.result(), average.samples)
