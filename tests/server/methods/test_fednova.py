"""FedNova: the spec's vector and properties, the named defects of public versions, and a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.extras import InvalidExtras
from common.local_steps import step_weight
from common.methods.fednova import PROGRESS
from common.state import State
from server.history.events import RoundFinished, SiteLeftOut
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, run

X = {"head.weight": np.zeros(2)}


def model(*values: float) -> State:
    return {"head.weight": np.array(values)}


def reply(after: State, samples: int, steps: int) -> Reply:
    return Reply(after, samples, {PROGRESS: {"steps": np.array(steps, np.int64)}})


def local(target: np.ndarray, steps: int, *, momentum: float = 0.0, mu: float = 0.0, rate: float = 0.1) -> np.ndarray:
    """Hand-written SGD on ½‖w − t‖² from 0, with momentum and a pull towards the start in the loss."""
    w, velocity = np.zeros_like(target), np.zeros_like(target)
    for _ in range(steps):
        velocity = momentum * velocity + (w - target) + mu * w
        w = w - rate * velocity
    return w


@pytest.mark.parametrize(
    ("momentum", "expected"), [(0.0, (0.0625, 0.33875)), (0.9, (0.1114375, 0.6126083))], ids=["plain", "momentum"]
)
def test_vector_a(momentum: float, expected: tuple[float, float]) -> None:
    rule = rule_of("fednova", {"1": 100, "2": 300}, train__momentum=momentum)
    ends = [local(np.array(t), tau, momentum=momentum) for t, tau in (((1.0, 0.0), 1), ((0.0, 2.0), 3))]
    replies = {"1": reply(model(*ends[0]), 100, 1), "2": reply(model(*ends[1]), 300, 3)}
    np.testing.assert_allclose(close_round(rule, X, replies)["head.weight"], expected, atol=1e-6)


def test_the_vector_tells_ours_from_what_others_do() -> None:
    """FedAvg's bias, and a mean that divides by the sum of the scales: τ_eff becomes the harmonic mean."""
    ends = [local(np.array(t), tau) for t, tau in (((1.0, 0.0), 1), ((0.0, 2.0), 3))]
    np.testing.assert_allclose(0.25 * ends[0] + 0.75 * ends[1], (0.025, 0.4065))
    assert not np.allclose((0.0625, 0.33875), (0.05, 0.271))


@pytest.mark.parametrize(
    ("steps", "momentum", "mu", "expected"),
    [(3, 0.9, 0.0, 5.61), (3, 0.0, 1.0, 2.71), (3, 0.9, 1.0, 5.14), (1, 0.9, 1.0, 1.0), (1, 0.0, 0.5, 1.0)],
)
def test_what_steps_amount_to(steps: int, momentum: float, mu: float, expected: float) -> None:
    assert step_weight(steps, momentum=momentum, rate=0.1, mu=mu) == pytest.approx(expected)


@given(st.integers(1, 60), st.floats(0, 0.99))
def test_the_closed_form_is_the_sum(steps: int, momentum: float) -> None:
    velocity = weight = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        weight += velocity
    assert step_weight(steps, momentum=momentum) == pytest.approx(weight)


@given(st.integers(1, 30), st.floats(0, 0.95), st.floats(0, 2), st.floats(0.01, 0.3))
def test_a_constant_gradient_moves_a_site_by_its_step_weight(
    steps: int, momentum: float, mu: float, rate: float
) -> None:
    w, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 + mu * w
        w -= rate * velocity
    assert -w / rate == pytest.approx(step_weight(steps, momentum=momentum, rate=rate, mu=mu))


UPDATES = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.integers(1, 50), st.integers(1, 40)), min_size=1, max_size=6
)


def replies_of(updates: list[tuple[float, float, int, int]]) -> dict[str, Reply]:
    return {str(i): reply(model(a, b), n, steps) for i, (a, b, n, steps) in enumerate(updates)}


def closed(updates: list[tuple[float, float, int, int]], **settings: object) -> np.ndarray:
    rule = rule_of("fednova", {}, **settings)
    return close_round(rule, model(0.5, -0.5), replies_of(updates))["head.weight"]


@given(UPDATES)
def test_equal_steps_are_fedavg(updates: list[tuple[float, float, int, int]]) -> None:
    equal = [(a, b, n, 1) for a, b, n, _ in updates]
    mean = np.average([(a, b) for a, b, _, _ in equal], axis=0, weights=[n for _, _, n, _ in equal])
    np.testing.assert_allclose(closed(equal), mean, atol=1e-8)


@given(UPDATES)
def test_one_site_gets_its_own_model_back(updates: list[tuple[float, float, int, int]]) -> None:
    a, b, n, _ = updates[0]
    np.testing.assert_allclose(closed([(a, b, n, 1 + n // 4)]), (a, b), atol=1e-7)


@given(UPDATES)
def test_neither_the_order_of_replies_nor_the_unit_of_the_counts_matters(
    updates: list[tuple[float, float, int, int]],
) -> None:
    legal = [(a, b, n + 40, steps) for a, b, n, steps in updates]
    first = closed(legal)
    shuffled = legal[::-1]
    np.testing.assert_array_equal(first, closed(shuffled))
    np.testing.assert_allclose(first, closed([(a, b, 3 * n, steps) for a, b, n, steps in legal]), atol=1e-8)


@given(UPDATES)
def test_the_same_direction_everywhere_goes_as_far_as_the_mean_site(
    updates: list[tuple[float, float, int, int]],
) -> None:
    """With one constant gradient g: x⁺ = x − η τ_eff g, and τ_eff lies between the least and the most steps."""
    legal = [(n + 40, steps) for _, _, n, steps in updates]
    start = model(0.5, -0.5)
    replies = {
        str(i): reply({"head.weight": start["head.weight"] - 0.1 * steps}, n, steps)
        for i, (n, steps) in enumerate(legal)
    }
    moved = (start["head.weight"] - close_round(rule_of("fednova", {}), start, replies)["head.weight"]) / 0.1
    effective = np.average([steps for _, steps in legal], weights=[n for n, _ in legal])
    np.testing.assert_allclose(moved, effective, atol=1e-5)


def test_buffers_are_averaged_as_fedavg_does() -> None:
    """PACFL's version divides every entry of the state, batch norm's counters included."""
    before = {
        "head.weight": np.zeros(1),
        "body.0.running_var": np.ones(1, np.float32),
        "body.0.num_batches_tracked": np.array(3),
    }
    after = [
        before | {"body.0.running_var": np.full(1, v, np.float32), "body.0.num_batches_tracked": np.array(k)}
        for v, k in ((2.0, 5), (4.0, 8))
    ]
    new = close_round(rule_of("fednova", {}), before, {"1": reply(after[0], 1, 1), "2": reply(after[1], 3, 3)})
    assert new["body.0.running_var"] == pytest.approx(3.5)
    assert new["body.0.num_batches_tracked"] == 7
    assert new["body.0.num_batches_tracked"].dtype == np.int64


def test_more_steps_than_the_samples_make_are_refused() -> None:
    rule = rule_of("fednova", {}, train__epochs=2, train__batch_size=10)
    with pytest.raises(InvalidExtras, match="claims 7 steps where 30 samples make at most 6"):
        close_round(rule, X, {"1": reply(X, 30, 7)})


def test_a_run_over_the_wire(small_config: MakeConfig) -> None:
    config = small_config(method="fednova", rounds=2, train__batch_size=8)
    record, grid = run(config)
    assert not record.of(SiteLeftOut)
    sent = [reply.content for reply in grid.replies if "extra progress" in reply.content]
    assert len(sent) == 12
    fedavg, _ = run(small_config(method="fedavg", rounds=2, train__batch_size=8))
    ours, theirs = record.of(RoundFinished)[-1].models[0], fedavg.of(RoundFinished)[-1].models[0]
    assert ours.keys() == theirs.keys()
    assert not np.allclose(ours["head.weight"], theirs["head.weight"], atol=1e-4)
