"""Trials: how long they last, who goes back, and that nobody goes to and fro."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config import MigrationSettings
from server.migration import GuardedRule
from server.migration.trial import Trials

losses = st.floats(0.001, 10)
SIZES = {0: 3, 1: 3, 2: 3}


def on_trial(loss_there: float = 1.0) -> Trials:
    """A site that went from group 0 to group 1."""
    trials = Trials()
    trials.judge(loss_there, SIZES, 2)
    trials.settle(0, 1, known=False)
    return trials


def went_back(loss_there: float = 1.0) -> Trials:
    trials = on_trial(loss_there)
    for _ in range(2):
        back = trials.judge(loss_there, SIZES, 2)
    assert back == 0
    trials.settle(1, 0, known=False)
    return trials


@given(losses, st.lists(losses, min_size=5, max_size=5), st.integers(1, 4))
def test_who_is_never_far_better_off_within_the_patience_goes_back(
    there: float, away: list[float], patience: int
) -> None:
    trials = on_trial(there)
    answers = []
    for loss in away:
        answers.append(trials.judge(loss, SIZES, patience))
        trials = Trials.restored(json.loads(json.dumps(trials.state())))
        if answers[-1] is not None:
            break
    if any(loss <= there / 2 for loss in away[:patience]):
        assert answers == [None] * 5
        assert trials.left is None
    else:
        assert answers == [None] * (patience - 1) + [0]


def test_there_is_nothing_to_compare_with_an_empty_group_or_without_losses() -> None:
    for sizes, loss in ((SIZES | {0: 0}, 5.0), (SIZES, None)):
        trials = on_trial()
        assert [trials.judge(loss, sizes, 1), trials.judge(5.0, SIZES, 1)] == [None, None]
    trials = Trials()
    trials.settle(0, 1, known=False)
    assert trials.judge(5.0, SIZES, 1) is None


def test_a_move_that_data_speak_for_is_on_no_trial() -> None:
    trials = Trials()
    trials.judge(1.0, SIZES, 1)
    trials.settle(0, 1, known=True)
    assert trials.judge(5.0, SIZES, 1) is None
    assert trials.refuted == {}


@pytest.mark.parametrize(
    ("home", "forgotten"),
    [
        # A group's model follows whose data stay as they are.
        ([0.85, 0.7, 0.6, 0.5, 0.4, 0.4, 0.4], False),
        # The loss of one round is noise.
        ([0.7, 1.2, 0.7, 0.6, 0.9, 0.5], False),
        # Two rounds tell nothing yet.
        ([1.0, 1.0], False),
        # The data go on changing, at once or later.
        ([0.95, 0.9, 0.85], True),
        ([0.6, 0.5, 0.4, 0.9, 1.0], True),
    ],
)
def test_what_a_trial_has_shown_holds_until_the_loss_stops_falling(home: list[float], forgotten: bool) -> None:
    trials = went_back()
    assert trials.refuted == {1: 1.0}
    for loss in home:
        assert trials.judge(loss, SIZES, 2) is None
    assert (trials.refuted == {}) == forgotten


def test_who_is_far_better_off_does_not_long_for_the_group_it_left() -> None:
    trials = on_trial()
    assert trials.judge(0.4, SIZES, 2) is None
    assert trials.refuted == {0: 0.4}


# --- the rule as a whole ----------------------------------------------------------------------------------------------

HOMES = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1, "g": 2, "h": 2}


def trips(seed: int, *, falls: float, rounds: int = 80, dwell: int = 1) -> list[int]:
    """Where site a sets out for, in a run in which it pulls at random and its loss at home falls by a factor."""
    rng = np.random.default_rng(seed)
    rule, groups, loss, found = GuardedRule(MigrationSettings(dwell=dwell)), dict(HOMES), 1.0, []
    for round_number in range(1, rounds):
        changes = {site: np.eye(8)[group] + rng.normal(0, 0.05, 8) for site, group in groups.items()}
        if round_number > 6:
            loss *= falls if groups["a"] == 0 else 1.0
            pull = np.eye(8)[rng.integers(3)] - np.eye(8)[groups["a"]] + rng.normal(0, 0.3, 8)
            changes["a"] = rng.choice([1.0, 20.0]) * pull
        noisy = {"a": loss * rng.uniform(0.95, 1.05) * (1.0 if groups["a"] == 0 else rng.uniform(0.6, 3))}
        for suspect in rule.suspects(round_number, changes, groups, losses=noisy):
            verdict = rule.by_direction(suspect)
            if verdict is None:
                continue
            target = 3 if verdict.target is None else verdict.target
            if verdict.site == "a" and suspect.back is None and target != suspect.group:
                found.append(target)
            groups[verdict.site] = target
            rule.settle(verdict, target, round_number)
    assert groups == {**HOMES, "a": groups["a"]}
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_whose_data_stay_as_they_are_tries_each_group_once(seed: int) -> None:
    assert max(Counter(trips(seed, falls=0.85)).values(), default=0) <= 1


def test_whose_loss_does_not_fall_may_try_again() -> None:
    assert max(Counter(trips(0, falls=1.0)).values()) > 1
