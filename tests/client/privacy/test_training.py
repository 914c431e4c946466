"""DP-SGD against a slow loop over samples, and its noise."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client.head_training import clipped_gradients
from client.policy.rules import Declined
from client.privacy.accountant import Release
from client.privacy.gradients import check_private, clipped_sum
from client.privacy.noise import SeededSource
from client.privacy.training import PrivateTraining
from client.training import in_numpy, train
from common.config import TrainSettings
from common.models import build, set_prior
from common.privacy import PrivacySettings

CPU = torch.device("cpu")


def slow(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, clip: float, frozen: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """One backward pass for each sample."""
    named = {name: one for name, one in model.named_parameters() if name not in frozen}
    total = {name: np.zeros(tuple(one.shape)) for name, one in named.items()}
    for row, label in zip(inputs, labels, strict=True):
        found = torch.autograd.grad(functional.cross_entropy(model(row[None]), label[None]), list(named.values()))
        length = math.sqrt(sum(float(one.double().square().sum()) for one in found))
        for name, one in zip(named, found, strict=True):
            total[name] += min(1.0, clip / max(length, 1e-30)) * one.numpy()
    return total


def data(count: int, *shape: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(count, *shape)).astype(np.float32))
    return inputs, torch.from_numpy(rng.integers(0, classes, count))


@pytest.mark.parametrize("name", ["head", "head-mlp"])
@pytest.mark.parametrize("clip", [1e-3, 20.0, 1e6])
def test_a_heads_clipped_gradients_are_those_of_a_loop(name: str, clip: float) -> None:
    model = build(name, classes=4, features=6, seed=0)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        model.centred.running_mean += 0.3  # type: ignore[union-attr, operator]
    set_prior(model, np.array([0.1, 0.2, 0.3, 0.4]))
    inputs, labels = data(9, 6)
    expected = slow(model, inputs, labels, clip)
    layers, rows, prior = in_numpy(model, inputs.numpy())  # type: ignore[arg-type]
    found = clipped_gradients(layers, rows, labels.numpy(), prior, clip)
    for one, other in zip(found, expected.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4 * min(clip, 1.0))


@pytest.mark.parametrize("name", ["lenet5", "mlp", "resnet9-gn"])
def test_a_networks_clipped_gradients_are_those_of_a_loop(name: str) -> None:
    model = build(name, classes=4, channels=1, image_size=8, seed=0)
    model.train()
    inputs, labels = data(5, 1, 8, 8)
    frozen = {"head.bias"}
    for clip in (0.5, 1e6):
        expected = slow(model, inputs, labels, clip, frozen)
        found = clipped_sum(model, inputs, labels, clip, frozen)
        assert set(found) == set(expected)
        for key, one in found.items():
            np.testing.assert_allclose(one.numpy(), expected[key], rtol=1e-3, atol=1e-4)
    assert all(not one.any() for one in clipped_sum(model, inputs[:0], labels[:0], 1.0).values())


@pytest.mark.parametrize("name", ["head", "head-mlp", "lenet5"])
@pytest.mark.parametrize("loud", [1e20, 1e37])
def test_a_sample_that_overflows_is_not_seen(name: str, loud: float) -> None:
    """Weights with which one sample alone gives no number, or next to nothing but rounding: it changes the sum by no
    more than the bound, as any other does."""
    shape = (1, 8, 8) if name == "lenet5" else (6,)
    reads = {"channels": 1, "image_size": 8} if name == "lenet5" else {"features": 6}
    inputs, labels = data(9, *shape)
    inputs = inputs.abs()
    inputs[0] *= 1e3
    model = build(name, classes=4, seed=0, **reads)  # type: ignore[arg-type]
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.sign(one + 1e-9) * loud ** (1 / 3 if name == "lenet5" else 1))
    model.train()

    def total(start: int) -> np.ndarray:
        if name == "lenet5":
            found = [one.numpy() for one in clipped_sum(model, inputs[start:], labels[start:], 1.0).values()]
        else:
            layers = in_numpy(model, inputs.numpy())[0]  # type: ignore[arg-type]
            found = list(clipped_gradients(layers, inputs.numpy()[start:], labels.numpy()[start:], None, 1.0))
        return np.concatenate([one.ravel() for one in found]).astype(np.float64)

    whole, rest = total(0), total(1)
    assert np.isfinite(whole).all()
    assert np.linalg.norm(whole - rest) <= 1 + 1e-3


def private(sigma: float, samples: int = 40, **settings: float) -> PrivateTraining:
    chosen = PrivacySettings.model_validate({"epsilon": 1.0} | settings)
    spent: list[Release] = []
    made = PrivateTraining(chosen, sigma, samples, np.zeros(0, np.float32), SeededSource(0, "t", "a", 1), spent.append)
    object.__setattr__(made, "spent", spent)
    return made


def trained(learning: PrivateTraining | None, name: str = "head", **changes: object) -> dict[str, np.ndarray]:
    reads = {"features": 6} if name == "head" else {"channels": 1, "image_size": 8}
    model = build(name, classes=4, seed=0, **reads)  # type: ignore[arg-type]
    inputs, labels = data(40, 6) if name == "head" else data(40, 1, 8, 8)
    settings = TrainSettings.model_validate({"lr": 0.1, "batch_size": 40, "epochs": 3} | changes)
    how = train if learning is None else learning.train
    how(model, inputs.numpy(), labels.numpy(), settings, round_number=1, rounds=1, seed=0, device=CPU)
    return {key: one.detach().numpy().copy() for key, one in model.named_parameters()}


@pytest.mark.parametrize("name", ["head", "lenet5"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_without_noise_and_bound_it_is_gradient_descent(name: str, momentum: float) -> None:
    plain = trained(None, name, momentum=momentum, weight_decay=0.01)
    found = trained(private(1e-12, clip=1e9), name, momentum=momentum, weight_decay=0.01)
    for key, one in plain.items():
        np.testing.assert_allclose(found[key], one, rtol=1e-3, atol=1e-4)


def test_a_step_has_the_noise_that_is_paid_for() -> None:
    """With one sample, clipped to nothing beside it, what is left is σ C / n in every weight."""
    learning = private(5.0, samples=20, clip=2.0)
    model = build("lenet5", classes=4, channels=1, image_size=8, seed=0)
    before = [one.detach().numpy().copy() for one in model.parameters()]
    inputs, labels = data(1, 1, 8, 8)
    settings = TrainSettings(lr=1.0, epochs=1)
    result = learning.train(
        model, inputs.numpy(), labels.numpy(), settings, round_number=1, rounds=1, seed=0, device=CPU
    )
    change = np.concatenate(
        [(one.detach().numpy() - old).ravel() for one, old in zip(model.parameters(), before, strict=True)]
    )
    assert change.std() == pytest.approx(5.0 * 2.0 / 20, rel=0.02)
    assert learning.spent == [Release(5.0, 1.0, 1)]  # type: ignore[attr-defined]
    # Neither the number of samples nor the loss is the true one.
    assert result.samples == 20
    assert math.isnan(result.loss)
    assert result.steps == 1


def test_at_a_rate_each_step_takes_its_own_samples() -> None:
    learning = private(1.0, rate=0.25)
    drawn = [len(learning._drawn(1000)) for _ in range(50)]
    assert 200 < min(drawn) < max(drawn) < 300
    assert len(set(drawn)) > 5
    assert np.mean(drawn) == pytest.approx(250, rel=0.03)
    trained(learning, epochs=2)
    assert learning.spent == [Release(1.0, 0.25, 8)]  # type: ignore[attr-defined]


def test_batch_norm_and_other_objectives_are_refused() -> None:
    model = build("resnet9", classes=4, channels=1, image_size=8, seed=0)
    with pytest.raises(Declined, match="batch norm"):
        trained(private(1.0), "resnet9")
    # Frozen it tells nothing of the batch.
    check_private(model.eval())
    inputs, labels = data(4, 6)
    with pytest.raises(Declined, match="no private form"):
        private(1.0).train(
            build("head", classes=4, features=6, seed=0), inputs.numpy(), labels.numpy(), TrainSettings(),
            round_number=1, rounds=1, seed=0, device=CPU, correct=lambda: None,
        )  # fmt: skip
