from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from client.methods.fedprox import Prox
from client.training import (
    TrainingDiverged,
    TrainingResult,
    batches,
    default_device,
    evaluate,
    normalise,
    plain,
    train,
)
from common.config import TrainSettings
from common.metrics import check, summarise
from common.models import build, get_state
from common.schedule import learning_rate
from common.state import State

CPU = torch.device("cpu")
Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]


def samples(count: int, size: int = 8) -> Samples:
    """Images whose brightness tells the class: learnable in a few steps."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = rng.integers(0, 60, (count, size, size, 3)) + 150 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def run(count: int = 37, *, model: str = "lenet5", seed: int = 5, **changes: object) -> tuple[State, TrainingResult]:
    network = build(model, classes=2, image_size=8, seed=0)
    settings = TrainSettings.model_validate({"lr": 0.05, "batch_size": 8, "epochs": 2} | changes)
    images, labels = samples(count)
    result = train(network, images, labels, settings, round_number=1, rounds=1, seed=seed, device=CPU)
    return get_state(network), result


def same(first: State, second: State) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("model", ["lenet5", "resnet9"])
def test_same_seed_same_bits(model: str) -> None:
    first, result = run(19, model=model, epochs=1)
    torch.manual_seed(99)
    again, result_again = run(19, model=model, epochs=1)
    other, _ = run(19, model=model, epochs=1, seed=6)
    assert same(first, again)
    assert result == result_again
    assert not same(first, other)


def test_batch_norm_keeps_the_statistics_of_this_rounds_batches() -> None:
    images, labels = samples(20)
    model = build("resnet9", classes=2, image_size=8, seed=0)
    first = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    seen = []
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].mean(dim=(0, 2, 3))))
    for _ in range(2):
        seen.clear()
        settings = TrainSettings(lr=0.05, batch_size=8)
        train(model, images, labels, settings, round_number=1, rounds=1, seed=3, device=CPU)
        assert len(seen) == 3
        torch.testing.assert_close(first.running_mean, torch.stack(seen).mean(dim=0))


def test_batch_norm_can_keep_torchs_moving_average() -> None:
    images, labels = samples(8)
    model = build("resnet9", classes=2, image_size=8, seed=0)
    first = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    seen = []
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].mean(dim=(0, 2, 3))))
    settings = TrainSettings(lr=0.05, batch_size=8, batch_norm="running")
    train(model, images, labels, settings, round_number=1, rounds=1, seed=3, device=CPU)
    torch.testing.assert_close(first.running_mean, 0.1 * seen[0])


def test_training_is_torch_sgd_on_the_same_batches() -> None:
    images, labels = samples(20)
    settings = TrainSettings(lr=0.05, momentum=0.9, batch_size=8, epochs=2, weight_decay=0.01)
    expected = build("lenet5", classes=2, image_size=8, seed=0)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []
    for epoch in range(2):
        for batch in batches(20, 8, np.random.default_rng((3, epoch))):
            inputs = (torch.from_numpy(images[batch]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
            optimizer.zero_grad()
            loss = functional.cross_entropy(expected(inputs), torch.from_numpy(labels[batch]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item() * len(batch))
    model = build("lenet5", classes=2, image_size=8, seed=0)
    result = train(model, images, labels, settings, round_number=1, rounds=9, seed=3, device=CPU)
    one_epoch = settings.model_copy(update={"epochs": 1})
    other = build("lenet5", classes=2, image_size=8, seed=0)
    first = train(other, images, labels, one_epoch, round_number=1, rounds=9, seed=3, device=CPU)
    for name, array in get_state(expected).items():
        np.testing.assert_allclose(get_state(model)[name], array, atol=1e-5)
    assert (result.samples, result.steps) == (20, 6)
    assert (first.samples, first.steps) == (20, 3)
    assert first.loss == pytest.approx(sum(losses[:3]) / 20, rel=1e-4)
    assert result.loss == pytest.approx(sum(losses[3:]) / 20, rel=1e-4)


def test_training_learns() -> None:
    model = build("lenet5", classes=2, image_size=8, seed=0)
    images, labels = samples(64)
    before = summarise(evaluate(model, images, labels, classes=2, batch_size=16, device=CPU))
    settings = TrainSettings(lr=0.05, batch_size=8, epochs=4)
    result = train(model, images, labels, settings, round_number=1, rounds=1, seed=0, device=CPU)
    after = summarise(evaluate(model, images, labels, classes=2, batch_size=16, device=CPU))
    assert result.loss < before.loss
    assert after.accuracy == 1.0
    assert after.loss < before.loss


@pytest.mark.parametrize("count", [1, 2, 9, 17])
def test_batch_norm_trains_with_any_number_of_samples(count: int) -> None:
    state, result = run(count, model="resnet9", epochs=1)
    assert result.samples == count
    assert all(np.isfinite(array).all() for array in state.values())


def test_read_only_samples_are_taken_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    images, labels = samples(4)
    images.flags.writeable = labels.flags.writeable = False
    model = build("mlp", classes=2, image_size=8, seed=0)
    train(model, images, labels, TrainSettings(), round_number=1, rounds=1, seed=0, device=CPU)
    evaluate(model, images, labels, classes=2, batch_size=4, device=CPU)
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]


def test_divergence_is_named() -> None:
    with pytest.raises(TrainingDiverged, match=r"local epoch \d+ of round 1 at learning rate 1e\+12"):
        run(lr=1e12, epochs=5)


def test_no_samples_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match="0 inputs and 0 labels"):
        run(0)


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 2**63 - 1))
def test_batches_hold_every_sample_once_and_never_one_alone(count: int, batch_size: int, seed: int) -> None:
    dealt = batches(count, batch_size, np.random.default_rng((seed, 0)))
    assert all(2 <= len(batch) <= batch_size + 1 for batch in dealt)
    expected = [0, 0] if count == 1 else list(range(count))
    assert sorted(int(place) for batch in dealt for place in batch) == expected
    assert all(len(batch) == batch_size for batch in dealt[:-1])


def test_epochs_have_different_orders() -> None:
    first, second = (batches(50, 50, np.random.default_rng((1, epoch)))[0] for epoch in (0, 1))
    assert not np.array_equal(first, second)


def test_learning_rate() -> None:
    constant, cosine = TrainSettings(lr=0.1), TrainSettings(lr=0.1, schedule="cosine")
    assert [learning_rate(constant, number, 3) for number in (1, 2, 3)] == [0.1, 0.1, 0.1]
    rates = [learning_rate(cosine, number, 100) for number in range(1, 101)]
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 1e-4
    assert learning_rate(cosine, 1, 1) == 0.1


def test_normalise() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    assert normalise(pixels).flatten().tolist() == pytest.approx([-1.0, -0.6, 1.0])
    assert normalise(torch.zeros(2, 4, 5, 3, dtype=torch.uint8)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("count", [0, 1, 13])
def test_evaluation_does_not_depend_on_the_batch_size(count: int) -> None:
    model = build("resnet9", classes=3, image_size=8, seed=0)
    images, labels = samples(count)
    state = {name: array.copy() for name, array in get_state(model).items()}
    whole, parts = (evaluate(model, images, labels, classes=3, batch_size=size, device=CPU) for size in (64, 4))
    check(whole, 3)
    np.testing.assert_array_equal(whole.confusion, parts.confusion)
    assert whole.loss_sum == pytest.approx(parts.loss_sum, rel=1e-5)
    assert summarise(whole).count == count
    assert same(state, get_state(model)), "an evaluation changed the model"


def test_the_plain_objective_is_the_mean_cross_entropy() -> None:
    model = nn.Linear(4, 3)
    inputs, labels = torch.ones(2, 4), torch.tensor([0, 2])
    assert torch.equal(plain(model, inputs, labels), functional.cross_entropy(model(inputs), labels))


def test_prox_is_sgd_with_a_pull_towards_the_received_model() -> None:
    images, labels = samples(20)
    settings = TrainSettings(lr=0.05, batch_size=8, epochs=2)
    expected = build("lenet5", classes=2, image_size=8, seed=0)
    start = [parameter.detach().clone() for parameter in expected.parameters()]
    for epoch in range(2):
        for batch in batches(20, 8, np.random.default_rng((3, epoch))):
            inputs = (torch.from_numpy(images[batch]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
            expected.zero_grad()
            functional.cross_entropy(expected(inputs), torch.from_numpy(labels[batch])).backward()
            with torch.no_grad():
                for parameter, received in zip(expected.parameters(), start, strict=True):
                    parameter.sub_(0.05 * (parameter.grad + 0.7 * (parameter - received)))
    model = build("lenet5", classes=2, image_size=8, seed=0)
    prox = Prox(model, mu=0.7)
    train(model, images, labels, settings, round_number=1, rounds=1, seed=3, device=CPU, objective=prox)
    for name, array in get_state(expected).items():
        np.testing.assert_allclose(get_state(model)[name], array, atol=1e-5)


def test_prox_without_a_pull_is_plain_bit_for_bit() -> None:
    images, labels = samples(20)
    states = []
    for make in (lambda model: plain, lambda model: Prox(model, mu=0)):
        model, settings = build("lenet5", classes=2, image_size=8, seed=0), TrainSettings(lr=0.05)
        objective = make(model)
        train(model, images, labels, settings, round_number=1, rounds=1, seed=3, device=CPU, objective=objective)
        states.append(get_state(model))
    assert same(*states)


def test_default_device_is_the_gpu_if_there_is_one() -> None:
    assert default_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_gradients_may_be_corrected_before_each_step() -> None:
    images, labels = samples(20)
    settings = TrainSettings(lr=0.05, batch_size=8, epochs=2)
    model = build("lenet5", classes=2, image_size=8, seed=0)
    start, seen = get_state(build("lenet5", classes=2, image_size=8, seed=0)), []

    def halt() -> None:
        seen.append(all(parameter.grad is not None for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    result = train(model, images, labels, settings, round_number=1, rounds=1, seed=3, device=CPU, correct=halt)
    assert seen == [True] * result.steps == [True] * 6
    assert same(start, get_state(model))
