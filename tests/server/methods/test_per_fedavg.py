"""Per-FedAvg: the spec's vector, what is adapted on and what is left alone, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from client.data import SiteData
from client.methods import site_method
from client.methods.per_fedavg import _still_buffers, meta_step
from common.methods.per_fedavg import Settings
from server.history.events import RoundFinished, RoundTrained, SiteLeftOut
from tests.support.quadratic import NAME, point, train_site, visit_of
from tests.support.resuming import check_resumed
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, run

RATES = {"per_fedavg__alpha": 0.1, "per_fedavg__beta": 0.05}


def first(w: Tensor) -> Tensor:
    return w**2 - w


def second(w: Tensor) -> Tensor:
    return 0.5 * w**2 + w


@pytest.mark.parametrize(
    ("gradient", "delta", "ends", "mean"),
    [
        ("fo", 1e-3, (0.96, 0.91), 0.935),
        ("hf", 1e-3, (0.968, 0.919), 0.9435),
        ("hf", 2.0, (0.968, 0.919), 0.9435),
    ],
)
def test_vector_e(gradient: str, delta: float, ends: tuple[float, float], mean: float) -> None:
    """HF is exact for a quadratic, whatever δ is."""
    settings = {**RATES, "per_fedavg__gradient": gradient, "per_fedavg__delta": delta}
    trained = [train_site("per-fedavg", 1.0, 0.0, steps=3, curve=curve, **settings) for curve in (first, second)]
    assert [float(one.state[NAME][0]) for one in trained] == pytest.approx(list(ends))
    replies = {str(number): Reply(one.state, 1) for number, one in enumerate(trained)}
    after = close_round(rule_of("per-fedavg", {}), point(1.0), replies)[NAME][0]
    assert after == pytest.approx(mean)
    if gradient == "fo":
        own = [
            site_method("per-fedavg").served(visit_of(after, curve=curve, **settings))[NAME][0]
            for curve in (first, second)
        ]
        assert own == pytest.approx([0.848, 0.7415])


@given(st.sampled_from(["fo", "hf"]), st.floats(-3, 3), st.integers(2, 7))
def test_without_an_inner_step_it_is_sgd_on_the_second_batches(gradient: str, t: float, batches: int) -> None:
    settings = {"per_fedavg__alpha": 0.0, "per_fedavg__beta": 0.05, "per_fedavg__gradient": gradient}
    ours = train_site("per-fedavg", 1.0, t, steps=batches, **settings)
    steps = max(1, batches // (2 if gradient == "fo" else 3))
    theirs = train_site("fedavg", 1.0, t, steps=steps, train__lr=0.05)
    assert ours.state[NAME][0] == pytest.approx(theirs.state[NAME][0])


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_for_a_linear_loss_both_gradients_are_the_same(slope: float, w: float) -> None:
    ends = [
        train_site("per-fedavg", w, 0, steps=3, curve=lambda x: slope * x, per_fedavg__gradient=g, **RATES).state[NAME]
        for g in ("fo", "hf")
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-9)


def test_a_site_with_a_single_batch_takes_a_step_all_the_same() -> None:
    for gradient in ("fo", "hf"):
        trained = train_site("per-fedavg", 1.0, 0.0, steps=1, curve=first, per_fedavg__gradient=gradient, **RATES)
        assert trained.state[NAME][0] == pytest.approx({"fo": 0.96, "hf": 0.968}[gradient])


def test_momentum_takes_no_part() -> None:
    """PACFL has one optimiser with momentum for both steps: the discarded gradient leaks into the outer one."""
    ends = [train_site("per-fedavg", 1.0, 3.0, steps=6, train__momentum=rho, **RATES).state[NAME] for rho in (0, 0.9)]
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("gradient", ["fo", "hf"])
def test_only_the_second_batch_moves_batch_norms_statistics(gradient: str) -> None:
    """FL-bench puts the whole state back: its statistics never move."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).train()
    batches = [torch.full((4, 2), value) + torch.rand(4, 2) for value in (10.0, 1.0, -10.0)]
    losses = [lambda batch=batch: network(batch).square().mean() for batch in batches]
    meta_step(network, losses, Settings(alpha=0.01, beta=0.01, gradient=gradient), 0.01)
    assert network[0].num_batches_tracked == 1
    torch.testing.assert_close(network[0].running_mean, 0.1 * batches[1].mean(0))


def test_what_is_frozen_is_not_copied() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).train()
    network.register_buffer("frozen", torch.zeros(3), persistent=False)
    frozen = network.frozen._version
    before = network[0].running_mean.clone()
    with _still_buffers(network):
        network(torch.rand(4, 2))
    torch.testing.assert_close(network[0].running_mean, before)
    assert network[0].num_batches_tracked == 0
    assert network.frozen._version == frozen


def test_no_test_sample_is_read_in_training_or_adaptation(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pFedMe's repository adapts on test batches."""
    read: list[str] = []
    inputs = SiteData.test_inputs
    monkeypatch.setattr(SiteData, "test_inputs", lambda site: (read.append(site.name), inputs(site))[1])
    record, _ = run(small_config(method="per-fedavg", rounds=1, sites=2, train__batch_size=8))
    assert not record.of(SiteLeftOut)
    # For the test of the last round, of the adapted and of the common model, and never before: round 1 tests nothing.
    assert sorted(read) == ["000", "000", "001", "001"]


def test_adapting_leaves_what_is_sent_as_it_is(small_config: MakeConfig) -> None:
    """A run that tests in every round ends with the bits of one that tests only the last."""
    models = []
    for every in (1, 3):
        config = small_config(method="per-fedavg", rounds=3, sites=2, test__every=every, train__batch_size=8)
        models.append(run(config)[0].of(RoundTrained)[-1].models[0])
    for name in models[0]:
        np.testing.assert_array_equal(models[0][name], models[1][name])


def test_sites_are_tested_after_a_step_of_their_own(small_config: MakeConfig) -> None:
    """PACFL adapts not at all before testing."""

    def losses(alpha: float) -> list[float]:
        config = small_config(method="per-fedavg", rounds=1, per_fedavg__alpha=alpha, per_fedavg__beta=1e-12)
        return [event.overall.loss for event in run(config)[0].of(RoundFinished)]

    assert losses(0.1)[0] < losses(0.0)[0]


def test_batch_norm_survives(small_config: MakeConfig) -> None:
    config = small_config(method="per-fedavg-hf", train__model="resnet9", rounds=1, sites=2)
    record, _ = run(config)
    assert not record.of(SiteLeftOut)
    assert np.isfinite(record.of(RoundFinished)[0].overall.loss)


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=3, method="per-fedavg", rounds=3, train__fraction=0.5)
