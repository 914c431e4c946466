"""The networks that sites train, and their state as named arrays.

Every network ends in a linear layer called `head`. Initial weights are drawn with NumPy, not with torch: torch's
generators give other bits on other processors and devices, and every run must be able to start from the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from common.encoders import HEADS
from common.randomness import generator
from common.state import State

# Above this side in pixels ResNet18 has the ImageNet stem (7x7 stride 2, then max-pool). That stem divides the side by
# four before the first block, which leaves nothing to look at in a 32-pixel image.
SMALL_IMAGE = 64

# Embeddings are brought to one length, at which the default learning rate of 0.01 suits a linear layer: what a step
# changes in the scores grows with the square of the length.
EMBEDDING_LENGTH = 72.0
# Half of the hidden units are off, and the first weights are small: two layers need more.
MLP_LENGTH = 128.0
_HEAD_WIDTH = 128


# How the names of networks end that have group norm in the place of batch norm, so that a sample is read by itself.
GROUP_NORM = "-gn"
_CHANNELS_OF_A_GROUP = 32


class InvalidState(ValueError):
    """Arrays that are not a state of the model; the message says why."""


def build(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    image_size: int = 32,
    features: int | None = None,
    hidden: tuple[int, int] = (64, 32),
    seed: int | None,
) -> nn.Module:
    """Return a network on the CPU that maps images float32[n, channels, size, size] to logits [n, classes].

    The weights are a function of `seed` and the architecture only, the same bits on every machine. With `seed` None
    they are left unset, which is quicker, for a site that loads a received state next. `features` is the length of a
    table's rows and takes the place of the image; only the mlp can have it, and `hidden`, the widths of its layers.
    """
    if name not in _ARCHITECTURES and name not in _OF_VECTORS:
        raise ValueError(f"unknown model {name!r}: known are {', '.join([*_ARCHITECTURES, *HEADS])}")
    if (name in HEADS or features is not None) and (features is None or name not in _OF_VECTORS):
        raise ValueError(f"{name} cannot read {'images' if features is None else f'vectors of {features} numbers'}")
    if image_size < 8:
        raise ValueError(f"images of {image_size} pixels are too small: the smallest side is 8")
    # On the meta device no memory is touched and no global generator advances.
    with torch.device("meta"):
        model: Network = (
            _mlp(features, classes, hidden)
            if name == "mlp" and features is not None
            else _OF_VECTORS[name](features, classes)
            if features is not None
            else _ARCHITECTURES[name](channels, image_size, classes)
        )
        if name.endswith(GROUP_NORM):
            _by_groups(model)
    model.to_empty(device="cpu")
    if seed is not None:
        _initialise(model, generator(seed, "initial weights"))
    return model


def get_state(model: nn.Module) -> State:
    """Return parameters and buffers (batch norm's too) by name, contiguous, in the order of the model.

    Of a tensor that began as something all have (`Network.base`), it is the difference from that. The arrays may share
    memory with a model on the CPU: copy them before training on.
    """
    base, own = _base_of(model), {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    changed = {name: tensor - base[name] if name in base else tensor for name, tensor in own.items()}
    return {name: tensor.contiguous().numpy() for name, tensor in changed.items()}


def set_state(model: nn.Module, state: Mapping[str, NDArray[Any]]) -> None:
    """Copy a state into the model; a state that does not fit raises `InvalidState` and changes nothing."""
    own = model.state_dict()
    if missing := [name for name in own if name not in state]:
        raise InvalidState(f"the state lacks {', '.join(missing)}")
    if unknown := [name for name in state if name not in own]:
        raise InvalidState(f"the model has no {', '.join(unknown)}")
    for name, target in own.items():
        array = state[name]
        if array.shape != tuple(target.shape):
            raise InvalidState(f"{name} has shape {array.shape}, not {tuple(target.shape)}")
        if array.dtype != _numpy_dtype(target.dtype):
            raise InvalidState(f"{name} is {array.dtype}, not {_numpy_dtype(target.dtype)}")
    base = _base_of(model)
    with torch.no_grad():
        for name, target in own.items():
            array = state[name]
            # torch has no read-only tensors and warns about arrays that are.
            value = torch.from_numpy(array if array.flags.writeable else array.copy())
            target.copy_(base[name] + value if name in base else value)


def _base_of(model: nn.Module) -> Mapping[str, Tensor]:
    # A blend has two networks, under their names.
    networks = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, Network)]
    return {
        f"{prefix}.{name}" if prefix else name: tensor
        for prefix, network in networks
        for name, tensor in network.base.items()
    }


def set_prior(model: nn.Module, shares: NDArray[np.float64] | None) -> None:
    """Let the model expect classes in these shares, float64[C], in training and at prediction; None: as it learns."""
    prior = None if shares is None else torch.from_numpy(np.log(shares).astype(np.float32))
    # A blend has two of them, and a network of the user's own says so by the buffer alone.
    networks = [module for module in model.modules() if "log_prior" in module._buffers]
    assert networks
    for network in networks:
        # Not by `setattr`, which looks at every kind of attribute a module may have: this is done for every message.
        weight = network.head.weight if isinstance(network, Network) else next(network.parameters())
        network._buffers["log_prior"] = None if prior is None else prior.to(weight.device)


def draw_head(model: nn.Module, seed: int) -> None:
    """Draw the head where the start is all zeros, which no two draws of a linear model tell apart."""
    head = model.head
    if isinstance(head, nn.Linear) and not head.weight.any():
        fill_uniform(head.weight, 1 / math.sqrt(head.in_features), generator(seed, "initial weights"))


class Network(nn.Module):
    """A body that turns inputs into features [n, width], and the linear classification head on them."""

    log_prior: Tensor | None

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, classes)
        # What tensors of the state were before anybody tuned them, the same everywhere; of those not named, nothing.
        self.base: dict[str, Tensor] = {}
        # Not part of the state: it is each site's own and never travels.
        self.register_buffer("log_prior", None, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classify(self.body(inputs))

    def classify(self, features: Tensor) -> Tensor:
        """Turn what the body makes of inputs into logits."""
        logits: Tensor = self.head(features)
        return logits if self.log_prior is None else logits + self.log_prior


class Centred(nn.Module):
    """x ↦ L (x - c) / |x - c|, with c the mean of what was trained on.

    What all images have in common is the longest part of most embeddings; beside it the differences between classes are
    small, and a linear layer learns them slowly. The centre travels like batch norm's statistics: a site measures its
    own (`measure`), and the mean over the sites, weighted by their samples, is the mean of all samples. It tells no
    more than the first update of a linear layer does, which is a sum of embeddings for each class.
    """

    running_mean: Tensor

    def __init__(self, features: int, length: float) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("running_mean", torch.zeros(features))

    def forward(self, embeddings: Tensor) -> Tensor:
        return functional.normalize(embeddings - self.running_mean) * self.length


class Head(Network):
    """Linear layers on centred embeddings of one length, with ReLU between them; `head` is the last."""

    def __init__(self, features: int, classes: int, length: float, *widths: int) -> None:
        layers: list[nn.Module] = [nn.Flatten(), Centred(features, length)]
        for inputs, outputs in zip((features, *widths), widths, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
        super().__init__(nn.Sequential(*layers), widths[-1] if widths else features, classes)

    @property
    def centred(self) -> Centred:
        """What embeddings pass first."""
        found = self.body[1]  # type: ignore[index]
        assert isinstance(found, Centred)
        return found

    @property
    def layers(self) -> list[nn.Linear]:
        """The layers that are trained, in order."""
        return [*(module for module in self.body.children() if isinstance(module, nn.Linear)), self.head]


def _resnet9(channels: int, image_size: int, classes: int) -> Network:
    """The nine-layer residual network of DAWNBench: 64-128-res-256-512-res."""
    body = nn.Sequential(
        _conv_norm(channels, 64),
        _conv_norm(64, 128, pool=True),
        _Residual(_conv_norm(128, 128), _conv_norm(128, 128)),
        _conv_norm(128, 256, pool=True),
        _conv_norm(256, 512, pool=True),
        _Residual(_conv_norm(512, 512), _conv_norm(512, 512)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        # DAWNBench's own factor. Without it the 512 pooled maxima have a squared length of thousands, and one step at
        # a learning rate of 0.01 moves the logits by dozens: training on skewed labels swings between the classes.
        _Scale(0.125),
    )
    return Network(body, 512, classes)


def _resnet18(channels: int, image_size: int, classes: int) -> Network:
    """ResNet18 (He et al. 2016), with a 3x3 stem and no max-pool for small images."""
    if image_size <= SMALL_IMAGE:
        stem = _conv_norm(channels, 64)
    else:
        stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
    body = nn.Sequential(
        stem,
        *(_BasicBlock(64, 64, stride=1), _BasicBlock(64, 64, stride=1)),
        *(_BasicBlock(64, 128, stride=2), _BasicBlock(128, 128, stride=1)),
        *(_BasicBlock(128, 256, stride=2), _BasicBlock(256, 256, stride=1)),
        *(_BasicBlock(256, 512, stride=2), _BasicBlock(512, 512, stride=1)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Network(body, 512, classes)


def _lenet5(channels: int, image_size: int, classes: int) -> Network:
    """LeNet5 with ReLU and max-pooling, the form in use in federated learning."""
    # LeCun put 28-pixel digits into a 32-pixel frame; the same is done with every smaller image. Larger ones are
    # pooled to the 5x5 cells of a 32-pixel image, for which the adaptive pool is the classic 2x2 one.
    frame = max(0, math.ceil((32 - image_size) / 2))
    body = nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=frame),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(5),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
    )
    return Network(body, 84, classes)


def _mlp(features: int, classes: int, hidden: tuple[int, int] = (64, 32)) -> Network:
    """Two hidden layers on the flattened input."""
    first, second = hidden
    body = nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, first),
        nn.ReLU(inplace=True),
        nn.Linear(first, second),
        nn.ReLU(inplace=True),
    )
    return Network(body, second, classes)


class _Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        change: Tensor = self.layers(images)
        return images + change


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Tensor) -> Tensor:
        return features * self.factor


class OfLength(nn.Module):
    """Brings feature vectors to one length."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, features: Tensor) -> Tensor:
        return functional.normalize(features) * self.length


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: Tensor) -> Tensor:
        change: Tensor = self.layers(images)
        passed: Tensor = self.shortcut(images)
        return functional.relu(change + passed, inplace=True)


def _conv_norm(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


def _by_groups(model: nn.Module) -> None:
    """Put group norm in the place of every batch norm (Wu and He 2018)."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            groups = max(1, module.num_features // _CHANNELS_OF_A_GROUP)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.GroupNorm(groups, module.num_features))


_ARCHITECTURES: dict[str, Callable[[int, int, int], Network]] = {
    "resnet9": _resnet9,
    "resnet18": _resnet18,
    f"resnet9{GROUP_NORM}": _resnet9,
    f"resnet18{GROUP_NORM}": _resnet18,
    "lenet5": _lenet5,
    "mlp": lambda channels, image_size, classes: _mlp(channels * image_size**2, classes),
}


_OF_VECTORS: dict[str, Callable[[int, int], Network]] = {
    "mlp": _mlp,
    "head": lambda features, classes: Head(features, classes, EMBEDDING_LENGTH),
    "head-mlp": lambda features, classes: Head(features, classes, MLP_LENGTH, _HEAD_WIDTH),
}


def _initialise(model: Network, rng: np.random.Generator) -> None:
    """Draw weights from U(-b, b) with b = 1 / sqrt(fan_in), torch's own rule; biases are 0.

    Networks without batch norm get the body's bound of He et al. instead, sqrt(6 / fan_in): under torch's rule the
    signal fades from layer to layer, and LeNet5 stays on a plateau for as many rounds as a small site has. Uniform
    draws, because normal ones take logarithms, which differ in the last bit between maths libraries.
    """
    if isinstance(model, Head):
        nn.init.zeros_(model.centred.running_mean)
    if not any(True for _ in model.body.parameters()):
        # Nothing to tell apart: a linear model has one optimum, and no start is nearer to it than none.
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        return
    normalised = any(isinstance(module, nn.BatchNorm2d | nn.GroupNorm) for module in model.modules())
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d | nn.Linear):
            gain = 1 if normalised or name == "head" else 6
            fill_uniform(module.weight, math.sqrt(gain / module.weight[0].numel()), rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def fill_uniform(parameter: Tensor, bound: float, rng: np.random.Generator) -> None:
    """Draw a tensor from U(-bound, bound), the same bits on every machine."""
    values = rng.random(tuple(parameter.shape), dtype=np.float32)
    values *= 2
    values -= 1
    values *= np.float32(bound)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values))


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
