"""A site that insists on secure sums: what it declines, and how it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.policy.policy import Policy
from client.policy.question import Question
from client.policy.rules import Declined, check
from client.policy.words import in_words, what_it_sends
from common.config import parse
from common.secure.terms import Terms
from common.wire import Task

TASK = Task(parse({"data.classes": "a,b"}).for_site(), 1, 5)
SECURE = Policy(aggregation="secure", least_members=6)


def terms(members: int) -> Terms:
    return Terms(tuple(f"{number:03d}" for number in range(members)), 10, 0, bytes(32))


@pytest.mark.parametrize(
    ("kind", "task", "line"),
    [
        ("train", TASK, "policy.aggregation"),
        ("train", replace(TASK, terms=terms(5)), "policy.least_members = 6, and the sum has 5"),
        ("query.keys", replace(TASK, terms=terms(5)), "policy.least_members = 6"),
        ("query.method", replace(TASK, rule="fl-hc", question="update"), "policy.aggregation"),
        ("query.method", replace(TASK, rule="rehearsal", question="train"), "policy.aggregation"),
        ("query.head", TASK, "policy.aggregation"),
        ("query.path", TASK, "policy.aggregation"),
    ],
)
def test_whatever_shows_an_update_by_itself_is_declined(kind: str, task: Task, line: str) -> None:
    question = Question(kind, task, "1")
    with pytest.raises(Declined, match=line):
        check(SECURE, question, [], 0.0)
    if line == "policy.aggregation":
        check(Policy(), question, [], 0.0)


@pytest.mark.parametrize("kind", ["train", "query.keys", "query.open", "evaluate"])
def test_a_secure_sum_of_enough_is_answered(kind: str) -> None:
    check(SECURE, Question(kind, replace(TASK, terms=terms(6)), "1"), [], 0.0)


def test_it_is_said_in_words() -> None:
    said = "\n".join(in_words(SECURE))
    assert "only hidden in secure sums of at least 6 sites" in said
    assert "It will never:" in said.partition("that anybody could read by itself")[0]
    assert "how a network's last layer" not in said
    assert "secure sums" not in "\n".join(in_words(Policy()))
    assert "only hidden in secure sums" in what_it_sends(SECURE, Question("train", TASK, "1"))


def test_fewer_than_four_can_never_be_asked_for() -> None:
    with pytest.raises(ValueError, match="4"):
        Policy(least_members=3)
