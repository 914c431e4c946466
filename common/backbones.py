"""A pretrained backbone of timm's as a network of a run: which part of it is tuned, and so makes up its state.

What is frozen is no parameter and no part of the state: it does not travel, is not averaged and not checkpointed, and
whoever goes through the parameters or the state of a network meets only what is tuned. Of a tensor that is tuned the
state holds the difference from the pretrained one, which begins as zero: so a server needs no weights at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.models import group_parameters
from torch import Tensor, nn

from common import low_rank
from common.config import SettingsError
from common.models import Network, OfLength
from common.randomness import generator
from common.tensor_names import is_parameter

# Features are brought to one length, at which the default learning rate suits the head, whatever the backbone.
_LENGTH = 32.0
_MATCHES_THE_GROUP_BEFORE = (99999,)  # timm's word for it


class Backbone(Network):
    """A backbone and a head, of which some is tuned.

    Attributes
    ----------
    digest
        Hex digest of the pretrained weights and of how images are scaled; empty where the weights are not at hand.
    """

    def __init__(self, body: nn.Module, width: int, classes: int, digest: str) -> None:
        super().__init__(body, width, classes)
        self.digest = digest

    def train(self, mode: bool = True) -> Backbone:
        """Only what is tuned trains: frozen batch norm keeps its statistics, and nothing is dropped at random."""
        super().train(mode)
        for module in self.body.modules():
            if not any(True for _ in module.parameters()):
                module.eval()
        return self


def outline(architecture: str, size: int) -> nn.Module:
    """The backbone without weights and without memory for them: shapes alone."""
    try:
        with torch.device("meta"):
            backbone = timm.create_model(architecture, pretrained=False, num_classes=0)
            set_size(architecture, backbone, size)
            return backbone
    except SettingsError:
        raise
    except Exception as error:  # the hub's client, which knows what hf-hub: names are, raises a dozen kinds
        raise SettingsError(f"train.model: timm has no model {architecture!r}: {error}") from None


def set_size(architecture: str, backbone: nn.Module, size: int) -> None:
    """Transformers fix the size of their images; those that can change it resample what depends on it."""
    if not hasattr(backbone, "set_input_size"):
        return
    try:
        backbone.set_input_size(img_size=(size, size))  # type: ignore[operator]
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _wrong_size(architecture, backbone, size, error) from None


def blank(architecture: str, *, classes: int, size: int, tune: str, seed: int | None) -> Backbone:
    """The network as a server has it: the state that everybody starts from, and no weights to compute with.

    `seed` draws what must be drawn; None: it is about to get a state.
    """
    network = assemble(architecture, outline(architecture, size), classes=classes, size=size, tune=tune)
    for name, tensor in network.state_dict(keep_vars=True).items():
        place, _, leaf = name.rpartition(".")
        zeros = torch.zeros(tensor.shape, dtype=tensor.dtype)
        setattr(network.get_submodule(place), leaf, nn.Parameter(zeros) if isinstance(tensor, nn.Parameter) else zeros)
    if seed is not None:
        low_rank.draw(network, generator(seed, "initial weights"))
    return network


def assemble(
    architecture: str,
    backbone: nn.Module,
    *,
    classes: int,
    size: int,
    tune: str,
    scale: tuple[Sequence[float], Sequence[float]] | None = None,
    digest: str = "",
) -> Backbone:
    """Make a network of a backbone, of which only what `tune` says is trained.

    `scale` are mean and spread of the pixels, between 0 and 1, that it was trained with; None: as timm has them.
    """
    width = _width(architecture, backbone, size)
    made_for = resolve_model_data_config(backbone)  # type: ignore[no-untyped-call]
    mean, spread = scale or (made_for["mean"], made_for["std"])
    kind, _, count = tune.partition(":")
    if kind == "lora" and not low_rank.adapt(backbone, int(count)):
        raise SettingsError(
            f"train.tune = {tune!r}: timm:{architecture} has no linear layer and no convolution of a single pixel to "
            "adapt; take last:<n>"
        )
    _freeze(backbone, _tuned(architecture, backbone, kind, int(count or 0)))
    parts = OrderedDict(scaled=_Scaled(mean, spread), backbone=backbone, length=OfLength(_LENGTH))
    network = Backbone(nn.Sequential(parts), width, classes, digest)
    # As heads on an encoder start: no draw is nearer to what is to be learnt than none.
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    if kind in ("last", "all"):
        network.base = {
            name: tensor.detach().clone()
            for name, tensor in network.state_dict().items()
            if name.startswith("body.") and tensor.is_floating_point() and not tensor.is_meta
        }
    return network


class _Scaled(nn.Module):
    """Pixels between -1 and 1 as the backbone knows them; grey ones are repeated for every colour."""

    factor: Tensor
    offset: Tensor

    def __init__(self, mean: Sequence[float], spread: Sequence[float]) -> None:
        super().__init__()
        middle, deviation = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(spread).view(1, -1, 1, 1)
        # x between -1 and 1 is the pixel (x + 1) / 2, of which the backbone wants (pixel - mean) / spread.
        self.register_buffer("factor", 0.5 / deviation, persistent=False)
        self.register_buffer("offset", (0.5 - middle) / deviation, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor + self.offset


def _tuned(architecture: str, backbone: nn.Module, kind: str, count: int) -> set[str]:
    """Names of the backbone's own parameters that are trained."""
    if kind == "all":
        return {name for name, _ in backbone.named_parameters()}
    if kind != "last":
        return set()
    try:
        # What timm puts into no block, such as the last norm, belongs to the last one.
        rest = {"rest": [(r".*", _MATCHES_THE_GROUP_BEFORE)]}
        groups = group_parameters(backbone, {**backbone.group_matcher(coarse=False), **rest})  # type: ignore[operator]
    except (AttributeError, TypeError):
        raise SettingsError(f"train.tune: timm:{architecture} does not say what its blocks are; take 'all'") from None
    blocks = len(groups) - 1  # the first is the stem
    if count > blocks:
        raise SettingsError(
            f"train.tune = 'last:{count}': timm:{architecture} has {blocks} blocks; 'all' tunes the whole of it"
        )
    return {name for number in range(blocks - count + 1, blocks + 1) for name in groups[number]}


def _freeze(backbone: nn.Module, tuned: set[str]) -> None:
    """Take everything out of parameters and state but what is tuned, and the statistics of batch norm that is."""
    for prefix, module in list(backbone.named_modules()):
        if isinstance(module, low_rank.LowRankLinear | low_rank.LowRankConv):
            continue
        place = f"{prefix}." if prefix else ""
        parameters, buffers = list(module.named_parameters(recurse=False)), list(module.named_buffers(recurse=False))
        frozen = [(name, tensor.detach()) for name, tensor in parameters if place + name not in tuned]
        trains = len(frozen) < len(parameters)
        frozen += [(name, tensor) for name, tensor in buffers if not trains or is_parameter(place + name)]
        for name, tensor in frozen:
            delattr(module, name)
            module.register_buffer(name, tensor, persistent=False)


@torch.no_grad()
def _width(architecture: str, backbone: nn.Module, size: int) -> int:
    """Length of a feature vector. Tried out, because architectures differ in what they take and give."""
    device = next(backbone.parameters()).device
    try:
        shape = tuple(backbone.eval()(torch.zeros(1, 3, size, size, device=device)).shape)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _wrong_size(architecture, backbone, size, error) from None
    if len(shape) != 2:
        raise SettingsError(f"timm:{architecture} gives features of shape {shape[1:]}, not one vector per image")
    return int(shape[1])


def _wrong_size(architecture: str, backbone: nn.Module, size: int, error: Exception) -> SettingsError:
    made_for = resolve_model_data_config(backbone)["input_size"][-1]  # type: ignore[no-untyped-call]
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SettingsError(
        f"timm:{architecture} does not take images of {size} px ({said}); it was made for data.image_size = {made_for}"
    )
