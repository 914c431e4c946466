"""A method's server half at work on plain arrays: the rounds of a federation without Flower, torch or messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.config import Config, parse
from common.state import Extras, State
from server.aggregation import GroupAverage
from server.methods import get_method
from server.methods.training import Contribution, TrainingRule


@dataclass
class Sites:
    """What a rule may know of the federation: how many samples its sites have declared."""

    declared: dict[str, int] = field(default_factory=dict)

    def sizes(self, group: int) -> dict[str, int]:
        return dict(self.declared)

    def draw(self, number: int) -> State:
        raise AssertionError("this rule draws no starts")

    def ask(self, question: str, extras: Extras, check: Callable[[Extras], None]) -> Mapping[str, Extras]:
        raise AssertionError("this rule asks nothing")


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
