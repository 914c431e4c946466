from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.models import InvalidState, build, get_state, set_state
from common.state import State, flat_head

NAMES = ("resnet9", "resnet18", "lenet5", "mlp")


def digest(model: nn.Module) -> str:
    hashed = hashlib.sha256()
    for name, array in get_state(model).items():
        hashed.update(name.encode() + array.tobytes())
    return hashed.hexdigest()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("image_size", "channels"), [(8, 1), (16, 3), (28, 1), (33, 3), (72, 3)])
def test_every_model_takes_every_image_size(name: str, image_size: int, channels: int) -> None:
    model = build(name, classes=5, channels=channels, image_size=image_size, seed=0).eval()
    with torch.inference_mode():
        assert model(torch.zeros(2, channels, image_size, image_size)).shape == (2, 5)


def test_parameter_counts_are_those_of_the_literature() -> None:
    def count(name: str, **shape: int) -> int:
        return sum(parameter.numel() for parameter in build(name, seed=None, **shape).parameters())  # type: ignore[misc]

    assert count("lenet5", classes=10, channels=1, image_size=28) == 61_706
    assert count("resnet18", classes=1000, channels=3, image_size=224) == 11_689_512
    assert count("resnet18", classes=10, channels=3, image_size=32) == 11_173_962
    assert count("resnet9", classes=10, channels=3, image_size=32) == 6_573_130
    assert count("mlp", classes=2, features=13) == 14 * 64 + 65 * 32 + 33 * 2


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = digest(build(name, classes=3, image_size=16, seed=7))
    before = torch.random.get_rng_state()
    torch.manual_seed(2)
    assert digest(build(name, classes=3, image_size=16, seed=7)) == first
    assert digest(build(name, classes=3, image_size=16, seed=8)) != first
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), before), "building a model advanced torch's global generator"


def test_initial_weights_never_change_between_releases() -> None:
    weights = get_state(build("lenet5", classes=10, channels=1, image_size=28, seed=0))["head.weight"]
    assert hashlib.sha256(weights.tobytes()).hexdigest()[:16] == "319e05d07aca5713"


@pytest.mark.parametrize("name", NAMES)
def test_head_is_the_last_weight_and_bias(name: str) -> None:
    model = build(name, classes=7, image_size=16, seed=0)
    state = get_state(model)
    weight, bias = list(state.values())[-2:]
    assert len(weight) == len(bias) == 7
    np.testing.assert_array_equal(flat_head(state), np.concatenate([bias, weight.ravel()]))
    np.testing.assert_array_equal(flat_head(dict(reversed(state.items()))), flat_head(state))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_state_goes_round(name: str, memory_format: torch.memory_format) -> None:
    source = build(name, classes=3, image_size=16, seed=1)
    target = build(name, classes=3, image_size=16, seed=2).to(memory_format=memory_format)
    for buffer in source.buffers():
        buffer.add_(3)
    received = get_state(source)
    for array in received.values():
        array.flags.writeable = False
    set_state(target, received)
    assert digest(source) == digest(target)
    assert all(array.flags.c_contiguous for array in get_state(target).values())


def test_state_holds_the_buffers_of_batch_norm() -> None:
    state = get_state(build("resnet9", classes=3, seed=0))
    assert state["body.0.1.running_var"].dtype == np.float32
    assert state["body.0.1.num_batches_tracked"].dtype == np.int64
    assert state["body.0.1.num_batches_tracked"].shape == ()


def without_bias(state: State) -> State:
    return {name: array for name, array in state.items() if name != "head.bias"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_bias, "lacks head.bias"),
        (lambda state: state | {"tail": np.zeros(1)}, "no tail"),
        (lambda state: state | {"head.bias": np.zeros(4, np.float32)}, "head.bias has shape"),
        (lambda state: state | {"head.bias": np.zeros(3, np.float64)}, "head.bias is float64"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    model = build("lenet5", classes=3, seed=0)
    before = digest(model)
    other = get_state(build("lenet5", classes=3, seed=1))
    with pytest.raises(InvalidState, match=message):
        set_state(model, change(other))
    assert digest(model) == before


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="known are resnet9, resnet18, resnet9-gn, resnet18-gn, lenet5, mlp"):
        build("vgg", classes=2, seed=0)
    with pytest.raises(ValueError, match="lenet5 cannot read vectors of 4 numbers"):
        build("lenet5", classes=2, features=4, seed=0)
    with pytest.raises(ValueError, match="smallest side is 8"):
        build("lenet5", classes=2, image_size=7, seed=0)
