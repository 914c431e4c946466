"""FedAdam, FedYogi and FedAdagrad: the spec's vector, buffers, what public versions do otherwise, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.state import State
from server.history.events import RoundFinished, SiteLeftOut
from server.methods.training import TrainingRule
from tests.support.resuming import check_resumed
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, run

NAME = "head.weight"
NAMES = ("fedadam", "fedyogi", "fedadagrad")


def step(rule: TrainingRule, x: np.ndarray, change: tuple[float, ...], group: int = 0) -> np.ndarray:
    return rule.close(group, {NAME: x}, {NAME: x + np.array(change)}, 1)[NAME]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("fedadam", (1.0905028, 1.9048739), (1.2159863, 1.8188498)),
        ("fedyogi", (1.0904988, 1.9048751), (1.2156845, 1.8192626)),
        ("fedadagrad", (1.0099005, 1.9900499), None),
    ],
)
def test_vector_c(name: str, first: tuple[float, ...], second: tuple[float, ...] | None) -> None:
    """Flower starts v at 0 and corrects a bias: (1.0674963, 1.9292895)."""
    rule = rule_of(name, {}, fedopt__rate=0.1)
    x = step(rule, np.array([1.0, 2.0]), (0.1, -0.2))
    assert x == pytest.approx(first, abs=5e-8)
    if second is not None:
        assert step(rule, x, (0.1, 0.0)) == pytest.approx(second, abs=5e-8)


@pytest.mark.parametrize(("name", "rate"), [("fedadam", 0.1), ("fedyogi", 0.01), ("fedadagrad", 0.1)])
def test_each_has_a_rate_of_its_own(name: str, rate: float) -> None:
    own, given_rate = rule_of(name, {}), rule_of(name, {}, fedopt__rate=rate)
    x = np.array([1.0])
    assert step(own, x, (0.3,)) == step(given_rate, x, (0.3,))


def slow(name: str, x: float, changes: list[float]) -> float:
    """One coordinate, as the paper writes it."""
    m, v = 0.0, 1e-6
    for d in changes:
        m = 0.9 * m + 0.1 * d
        if name == "fedadam":
            v = 0.99 * v + 0.01 * d**2
        elif name == "fedyogi":
            v = v - 0.01 * d**2 * (1 if v > d**2 else -1 if v < d**2 else 0)
        else:
            v = v + d**2
        x += 0.1 * m / (v**0.5 + 1e-3)
    return x


@given(st.sampled_from(NAMES), st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), max_size=5))
def test_it_is_the_obvious_loop_over_coordinates(name: str, changes: list[list[float]]) -> None:
    rule, x = rule_of(name, {}, fedopt__rate=0.1), np.array([1.0, -2.0, 0.0])
    expected = [slow(name, float(start), [change[place] for change in changes]) for place, start in enumerate(x)]
    for change in changes:
        x = step(rule, x, tuple(change))
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_who_changes_nothing_moves_nothing(name: str) -> None:
    rule, x = rule_of(name, {}), np.array([1.0, -3.0])
    for _ in range(3):
        np.testing.assert_array_equal(step(rule, x, (0.0, 0.0)), x)


def test_the_first_step_is_the_rate_in_every_coordinate() -> None:
    """Adam with ε → 0 in round 1: m / √v = 0.1 Δ / (0.1 |Δ|)."""
    x = np.array([1.0, -3.0, 0.0])
    after = step(rule_of("fedadam", {}, fedopt__rate=0.2, fedopt__epsilon=1e-12), x, (5.0, -0.01, 300.0))
    np.testing.assert_allclose(after - x, [0.2, -0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_buffers_are_those_of_fedavg(name: str) -> None:
    """Flower steps along batch norm's statistics and counters, too: a variance may turn negative."""

    def state(weight: float, variance: float, count: int) -> State:
        return {
            NAME: np.full(2, weight, np.float32),
            "body.running_var": np.full(2, variance, np.float32),
            "body.num_batches_tracked": np.array(count),
        }

    replies = {"1": Reply(state(1.0, 0.01, 3), 1), "2": Reply(state(2.0, 0.3, 8), 3)}
    ours = close_round(rule_of(name, {}), state(0.5, 4.0, 0), replies)
    fedavg = close_round(rule_of("fedavg", {}), state(0.5, 4.0, 0), replies)
    for buffer in ("body.running_var", "body.num_batches_tracked"):
        np.testing.assert_array_equal(ours[buffer], fedavg[buffer])
    assert not np.array_equal(ours[NAME], fedavg[NAME])
    assert ours[NAME].dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_groups_have_moments_of_their_own_and_a_restart_changes_no_bit(name: str) -> None:
    rule, x = rule_of(name, {}), np.array([1.0, 2.0])
    step(rule, x, (9.0, 9.0), group=1)
    fresh = step(rule_of(name, {}), x, (0.1, -0.2))
    np.testing.assert_array_equal(step(rule, x, (0.1, -0.2), group=0), fresh)
    again = rule_of(name, {})
    again.restore(rule.state())
    for group in (0, 1):
        np.testing.assert_array_equal(step(again, x, (0.3, 0.0), group), step(rule, x, (0.3, 0.0), group))


def test_a_group_that_is_no_more_leaves_no_moments() -> None:
    rule = rule_of("fedadam", {})
    for group in (0, 1):
        step(rule, np.array([1.0]), (0.1,), group)
    rule.forget(1)
    rule.forget(7)
    assert set(rule.state()) == {"0"}


@pytest.mark.parametrize("name", NAMES)
def test_it_trains(small_config: MakeConfig, name: str) -> None:
    record, _ = run(small_config(method=name, rounds=3, fedopt__rate=0.01))
    assert not record.of(SiteLeftOut)
    losses = [event.overall.loss for event in record.of(RoundFinished)]
    assert losses[-1] < losses[0]


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=4, method="fedadam", rounds=4, checkpoint=2, train__fraction=0.5)
