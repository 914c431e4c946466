"""Published encoders, built: timm's or transformers' networks, with what is said of them in `common.presets`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from client.pretrained import Asker, create, from_hub, no_hub
from common.config import SettingsError
from common.presets import PRESETS, Preset


class ConvolutionalStem(nn.Module):
    """CHIEF's first layers: convolutions make an image a map of patches, a quarter as wide, with its channels last."""

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        norm_layer: type[nn.Module],
        **_: object,  # what timm tells every stem, and this one has no use for
    ) -> None:
        super().__init__()
        if patch_size != 4:
            raise ValueError(f"the stem makes patches of 4 pixels, not of {patch_size}")
        narrow, wide = embed_dim // 8, embed_dim // 4
        self.proj = nn.Sequential(
            nn.Conv2d(in_chans, narrow, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, embed_dim, 1),
        )
        self.norm = norm_layer(embed_dim)
        self.set_input_size(img_size=(img_size, img_size) if isinstance(img_size, int) else img_size)

    def set_input_size(self, img_size: tuple[int, int], patch_size: object = None) -> None:
        """Take images of another size."""
        if img_size[0] % 32 or img_size[1] % 32:
            raise ValueError(f"sides must be multiples of 32 pixels, and are {img_size}")
        self.grid_size = img_size[0] // 4, img_size[1] // 4

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.norm(self.proj(images).permute(0, 2, 3, 1))
        return patches


class _ClassAndMean(nn.Module):
    """The class token, and behind it the mean of all patches; registers are left out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.network.forward_features(images)  # type: ignore[operator]
        patches = tokens[:, int(self.network.num_prefix_tokens) :]  # type: ignore[arg-type]
        return torch.cat([tokens[:, 0], patches.mean(dim=1)], dim=1)


class _ClassToken(nn.Module):
    """The class token of one of transformers' networks."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        token: Tensor = self.network(pixel_values=images).last_hidden_state[:, 0]
        return token


def build(preset: Preset, asker: Asker) -> nn.Module:
    """The network of a published encoder as its library makes it, with weights of no meaning."""
    if preset.library == "timm":
        return create(preset.architecture, asker, **_arguments(preset))
    transformers = _transformers(asker)
    config = transformers.AutoConfig.for_model(preset.architecture, **preset.arguments)
    model: nn.Module = transformers.AutoModel.from_config(config)
    return _without_pooler(model)


def fetch(name: str, asker: Asker) -> nn.Module:
    """The network with the weights that the hub has, or that its client has kept."""
    preset = PRESETS[name]
    if not preset.hub:
        raise asker.error(
            f"the weights of encoder {name!r} are a file that its authors hand out: set {asker.weights} to your copy"
        )
    if preset.library == "timm":
        return from_hub(f"hf-hub:{preset.hub}", asker, **_arguments(preset))
    transformers = _transformers(asker)
    try:
        with _quiet():
            model: nn.Module = transformers.AutoModel.from_pretrained(preset.hub, trust_remote_code=False)
    except Exception as error:  # the hub's client raises a dozen kinds, depending on what is missing
        raise no_hub(f"encoder {name!r}", error, asker) from error
    return _without_pooler(model)


def pooled(network: nn.Module, preset: Preset) -> nn.Module:
    """The network as an encoder: an image in, a vector out."""
    if preset.pooling == "own":
        return network
    return _ClassToken(network) if preset.pooling == "class" else _ClassAndMean(network)


def fill(model: nn.Module, found: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Load tensors under any of the names that transformers ever gave them, or return those that do not fit."""
    plain = {name: tensor for name, tensor in found.items() if not name.startswith(("pooler.", "classifier."))}
    with _quiet():
        # It translates names only where it makes the network anew.
        made, said = type(model).from_pretrained(  # type: ignore[attr-defined]
            None,
            config=model.config,
            state_dict=plain,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    faults = {
        "missing": sorted(name for name in said["missing_keys"] if not name.startswith("pooler.")),
        "unexpected": sorted(said["unexpected_keys"]),
        "of another shape": sorted(name for name, *_ in said["mismatched_keys"]),
    }
    if not any(faults.values()):
        model.load_state_dict(_without_pooler(made).state_dict())
    return faults


def outlines() -> Iterator[tuple[str, Counter[tuple[int, ...]]]]:
    """Yield every published encoder that can be made here with the shapes of its tensors, without memory for them."""
    asker = Asker("encoder.name", "encoder.weights", SettingsError)
    for name, preset in PRESETS.items():
        try:
            with torch.device("meta"):
                model = build(preset, asker)
        except SettingsError:
            continue  # transformers is not installed
        yield name, Counter(tuple(tensor.shape) for tensor in model.state_dict().values())


def _arguments(preset: Preset) -> dict[str, Any]:
    # Not for everybody: timm takes a second to import, and 120 MB.
    from timm.layers.mlp import SwiGLUPacked

    by_word: Mapping[str, object] = {"convolutions": ConvolutionalStem, "swiglu": SwiGLUPacked}
    return {
        name: by_word.get(value, value) if isinstance(value, str) else value for name, value in preset.arguments.items()
    }


def _transformers(asker: Asker) -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise asker.error(
            f"{asker.name}: this encoder needs the package transformers: pip install coterie[transformers]"
        ) from None
    return transformers


def _without_pooler(model: nn.Module) -> nn.Module:
    """Some have a layer behind the class token that an encoder has no use for, and whose weights no file has."""
    if hasattr(model, "pooler"):
        model.pooler = None  # type: ignore[assignment]
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Transformers prints a table of tensors and a bar; what does not fit we say ourselves."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]
