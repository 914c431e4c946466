"""pFedMe: the spec's vector, which model is tested, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from client.methods import site_method
from client.methods.method import Trained
from common.config import SettingsError, parse
from server.history.events import RoundFinished, SiteLeftOut
from server.methods import settle
from tests.support.quadratic import NAME, point, train_site, visit_of
from tests.support.resuming import check_resumed
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, run, run_to_disk

SETTINGS = {"pfedme__pull": 2.0, "pfedme__rate": 0.1, "pfedme__steps": 2, "train__lr": 0.05}


def theta(trained: Trained) -> float:
    assert trained.memory is not None
    return float(trained.memory[NAME][0])


def test_vector_f() -> None:
    """PACFL never advances w within a round: 0.017833."""
    once = train_site("pfedme", 0.0, 1.0, steps=1, **SETTINGS)
    assert (theta(once), once.state[NAME][0]) == (pytest.approx(0.17), pytest.approx(0.017))
    first = train_site("pfedme", 0.0, 1.0, steps=2, **SETTINGS)
    assert (theta(first), first.state[NAME][0]) == (pytest.approx(0.25908), pytest.approx(0.041208))
    second = train_site("pfedme", 0.0, -2.0, steps=2, **SETTINGS)
    assert (theta(second), second.state[NAME][0]) == (pytest.approx(-0.51816), pytest.approx(-0.082416))
    replies = {"1": Reply(first.state, 1), "2": Reply(second.state, 1)}
    for beta, after in ((1.0, -0.020604), (2.0, -0.041208), (0.0, 0.0)):
        rule = rule_of("pfedme", {}, pfedme__beta=beta)
        assert close_round(rule, point(0.0), replies)[NAME][0] == pytest.approx(after)


def test_buffers_are_averaged_whatever_beta_is() -> None:
    before = point(0.0) | {"body.running_var": np.ones(1, np.float32)}
    replies = {"1": Reply(before | {"body.running_var": np.full(1, 3.0, np.float32)}, 1)}
    after = close_round(rule_of("pfedme", {}, pfedme__beta=0.5), before, replies)
    assert after["body.running_var"] == pytest.approx(3.0)


@given(st.floats(-3, 3), st.floats(-3, 3), st.integers(1, 4), st.integers(1, 4))
def test_without_a_pull_the_common_model_stays_and_theta_is_sgd(w: float, t: float, steps: int, inner: int) -> None:
    ours = train_site("pfedme", w, t, steps=steps, pfedme__pull=0.0, pfedme__rate=0.1, pfedme__steps=inner)
    assert ours.state[NAME][0] == w
    theirs = train_site("fedavg", w, t, steps=steps * inner, train__lr=0.1)
    assert theta(ours) == pytest.approx(theirs.state[NAME][0])


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.1, 1e3))
def test_an_exact_solver_finds_the_envelope(w: float, t: float, pull: float) -> None:
    """One step at η_p = 1 / (1 + λ) solves the quadratic; for λ → ∞ the step of w is SGD's."""
    rate = 1e-4
    settings = {"pfedme__pull": pull, "pfedme__rate": 1 / (1 + pull), "pfedme__steps": 1, "train__lr": rate}
    trained = train_site("pfedme", w, t, steps=1, **settings)
    assert theta(trained) == pytest.approx((t + pull * w) / (1 + pull), abs=1e-9)
    exact = w - rate * pull / (1 + pull) * (w - t)
    assert trained.state[NAME][0] == pytest.approx(exact, abs=1e-9)


def test_momentum_and_weight_decay_take_no_part() -> None:
    """All four public versions add an unstated L2 term of 0.001."""
    plain = train_site("pfedme", 0.5, 1.0, steps=3, **SETTINGS)
    other = train_site("pfedme", 0.5, 1.0, steps=3, train__momentum=0.9, train__weight_decay=0.5, **SETTINGS)
    assert theta(plain) == theta(other)


def test_theta_is_tested_and_is_no_view_of_the_network() -> None:
    """The official code keeps the model's own parameter list, which w overwrites before the test; FL-bench never
    stores θ; PFLlib tests the global model."""
    visit = visit_of(0.0, 1.0, steps=2, **SETTINGS)
    trained = site_method("pfedme").train(visit)
    before = theta(trained)
    assert before != trained.state[NAME][0]
    visit.load(point(9.0))
    assert theta(trained) == before
    later = visit_of(0.3, memory=trained.memory)
    assert site_method("pfedme").served(later)[NAME][0] == before
    assert site_method("pfedme").served(visit_of(0.3))[NAME][0] == 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.lr": 0.1, "pfedme.pull": 15.0}, "train.lr × pfedme.pull = 1.5"),
        ({"pfedme.rate": 0.2, "pfedme.pull": 10.0}, "pfedme.rate × pfedme.pull = 2"),
    ],
)
def test_steps_that_overshoot_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settle(parse({"method": "pfedme", **settings}))


def test_in_a_run_theta_is_remembered_and_does_better_than_the_common_model(
    small_config: MakeConfig, tmp_path: Path
) -> None:
    config = small_config(method="pfedme", rounds=2, train__lr=0.01, sites=3, pfedme__rate=0.02)
    out = run_to_disk(config, tmp_path / "run")
    own = load_file(out / "memory" / "000" / "round-0000000002.safetensors")
    common = load_file(out / "models" / "group-0.safetensors")
    assert set(own) == set(common)
    assert not np.array_equal(own["head.weight"], common["head.weight"])
    record, _ = run(config)
    assert not record.of(SiteLeftOut)
    assert record.of(RoundFinished)[-1].overall.accuracy > 0.3


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = {
        "method": "pfedme",
        "rounds": 4,
        "checkpoint": 2,
        "train__fraction": 0.5,
        "train__lr": 0.01,
        "pfedme__rate": 0.02,
    }
    check_resumed(small_config, tmp_path, stop=4, **settings)
