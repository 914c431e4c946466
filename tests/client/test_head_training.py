"""SGD on heads in NumPy: the same as torch's on the same network, the same bits whenever it is repeated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

from client.head_training import Descent, Layer, centred, descend, scores
from client.training import TrainingDiverged, measure, plain, train
from common.config import TrainSettings
from common.models import Head, build, get_state, set_prior, set_state
from common.prior import class_shares

CPU = torch.device("cpu")
HEADS = ["head", "head-mlp"]


def sample(count: int = 50, features: int = 24, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    means = rng.normal(size=(classes, features)) + 3
    return (means[labels] + rng.normal(size=(count, features))).astype(np.float32), labels.astype(np.int64)


def by_torch(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """An objective that is not `plain` itself, so that torch has to take the steps."""
    return plain(model, inputs, labels)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("more", [{}, {"momentum": 0.9}, {"weight_decay": 0.1, "momentum": 0.5}, {"epochs": 3}])
@pytest.mark.parametrize("prior", [True, False])
def test_a_head_is_trained_as_torch_trains_it(name: str, more: dict[str, float], prior: bool) -> None:
    inputs, labels = sample()
    chosen = TrainSettings(model=name, batch_size=8, lr=1e-4, **more)  # type: ignore[arg-type]
    results = []
    for objective in (plain, by_torch):
        model = build(name, classes=4, features=24, seed=1)
        measure(model, inputs)
        set_prior(model, class_shares(np.bincount(labels, minlength=4)) if prior else None)
        result = train(model, inputs, labels, chosen, round_number=1, rounds=1, seed=3, device=CPU, objective=objective)
        results.append((result, {key: array.copy() for key, array in get_state(model).items()}))
    (ours, mine), (theirs, reference) = results
    assert (ours.steps, ours.samples) == (theirs.steps, theirs.samples)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    for key in reference:
        np.testing.assert_allclose(mine[key], reference[key], rtol=5e-3, atol=2e-4)


def test_a_stack_of_sites_gives_the_bits_of_each_site_alone() -> None:
    """Why one site after the other costs nothing but calls: NumPy's stacked product is one product per site."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(7, 32, 1280)).astype(np.float32)
    weights = rng.normal(size=(7, 10, 1280)).astype(np.float32)
    together = inputs @ weights.transpose(0, 2, 1)
    assert all(np.array_equal(together[site], inputs[site] @ weights[site].T) for site in range(7))


@pytest.mark.parametrize("name", HEADS)
def test_scores_are_those_of_the_network(name: str) -> None:
    inputs, _ = sample()
    model = build(name, classes=4, features=24, seed=1)
    assert isinstance(model, Head)
    measure(model, inputs)
    layers = [Layer(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in model.layers]
    rows = centred(inputs, model.centred.running_mean.numpy(), model.centred.length)
    expected = model(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(scores(layers, rows), expected, rtol=1e-4, atol=1e-4)


def test_the_gradient_is_that_of_the_loss() -> None:
    """One step against differences of the loss, in the widest type there is of it."""
    inputs, labels = sample(12, 5, 3)
    rng = np.random.default_rng(1)
    start = [Layer(rng.normal(size=(6, 5)), rng.normal(size=6)), Layer(rng.normal(size=(3, 6)), rng.normal(size=3))]

    def loss(layers: list[Layer]) -> float:
        logits = scores(layers, inputs.astype(np.float64))  # type: ignore[arg-type]
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(12), labels]))

    moved = [Layer(layer.weight.copy(), layer.bias.copy()) for layer in start]
    total = descend(moved, inputs.astype(np.float64), labels, None, Descent(1.0), [np.arange(12)], [])  # type: ignore[arg-type]
    assert total / 12 == pytest.approx(loss(start), rel=1e-6)
    for place, attribute, index in [(0, "weight", (2, 3)), (0, "bias", (4,)), (1, "weight", (1, 2)), (1, "bias", (0,))]:
        gradient = (getattr(start[place], attribute) - getattr(moved[place], attribute))[index]
        around = []
        for change in (1e-5, -1e-5):
            near = [Layer(layer.weight.copy(), layer.bias.copy()) for layer in start]
            getattr(near[place], attribute)[index] += change
            around.append(loss(near))
        assert gradient == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-3, abs=1e-6)


@given(
    rows=arrays(np.float32, (5, 3), elements=st.floats(-100, 100, width=32)),
    centre=arrays(np.float32, 3, elements=st.floats(-100, 100, width=32)),
)
@settings(max_examples=50)
def test_centred_rows_have_one_length_or_none(rows: np.ndarray, centre: np.ndarray) -> None:
    lengths = np.linalg.norm(centred(rows, centre, 7.0), axis=1)
    apart = np.linalg.norm((rows - centre).astype(np.float64), axis=1)
    assert np.allclose(lengths[apart > 1e-3], 7.0, rtol=1e-3)
    assert (lengths[apart == 0] == 0).all()


@pytest.mark.parametrize("name", HEADS)
def test_a_rate_that_is_too_high_is_named(name: str) -> None:
    inputs, labels = sample()
    with pytest.raises(TrainingDiverged, match=r"a lower train.lr may help"):
        train(
            build(name, classes=4, features=24, seed=1), inputs, labels,
            TrainSettings(model=name, lr=1e37, epochs=5), round_number=1, rounds=1, seed=0, device=CPU,
        )  # fmt: skip


def test_training_leaves_the_centre_that_came_and_measuring_takes_that_of_the_inputs() -> None:
    """All sites of a group train in the same frame, or their heads could not be compared."""
    inputs, labels = sample()
    model = build("head", classes=4, features=24, seed=1)
    assert isinstance(model, Head)
    set_state(model, get_state(model) | {"body.1.running_mean": np.full(24, 2, np.float32)})
    train(model, inputs, labels, TrainSettings(model="head"), round_number=1, rounds=1, seed=0, device=CPU)
    assert (model.centred.running_mean == 2).all()
    measure(model, inputs)
    np.testing.assert_allclose(model.centred.running_mean.numpy(), inputs.mean(axis=0), rtol=1e-5)


def test_sites_do_not_see_each_other_through_the_rows_they_share() -> None:
    inputs, labels = sample()
    inputs.flags.writeable = False
    before = inputs.copy()
    model = build("head", classes=4, features=24, seed=1)
    train(model, inputs, labels, TrainSettings(model="head"), round_number=1, rounds=1, seed=0, device=CPU)
    assert np.array_equal(inputs, before)
