"""Weights of a frozen network from a local file: read within bounds, and held against the network tensor by tensor."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor, nn

from client.presets import build, fill, outlines
from client.pretrained import Asker, create
from common.foreign import Unusable, named_faults, read_checkpoint
from common.presets import PRESETS, Preset

_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
# Of the tensors of two networks, the share that must have the same shapes for one to look like the other.
_ALIKE = 0.9


def from_file(architecture: str, path: Path, asker: Asker) -> nn.Module:
    """Load a local file that holds exactly the tensors of one of timm's architectures. A classifier is ignored."""
    model = create(architecture, asker)
    _load(f"timm:{architecture}", model, path, asker)
    return model


def preset_from_file(name: str, path: Path, asker: Asker) -> nn.Module:
    """Load a local file with the weights of a published encoder, in the layout in which its authors hand it out."""
    preset = PRESETS[name]
    model = build(preset, asker)
    _load(name, model, path, asker, preset)
    return model


def _load(name: str, model: nn.Module, path: Path, asker: Asker, preset: Preset | None = None) -> None:
    found = read_weights(path, asker)
    if preset is not None and preset.library == "transformers":
        faults = fill(model, found)
    else:
        faults = _fill(model, found, preset)
    if any(faults.values()):
        # Of tensors that only the file has, the names are the site's own.
        raise asker.of_file(
            f"weights file '{path}' does not fit {name}; "
            + "; ".join(f"{kind}: {_some(names)}" for kind, names in faults.items() if names)
            + _looks_like(found),
            f"the file does not fit {name}",
        )


def _fill(model: nn.Module, found: Mapping[str, Tensor], preset: Preset | None) -> dict[str, list[str]]:
    """Load the tensors, or return by kind the names of those that do not fit."""
    heads = model.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr, operator]
    dropped = tuple(f"{head}." for head in ((heads,) if isinstance(heads, str) else heads))
    untrained: tuple[str, ...] = ()
    if preset is not None:
        dropped, untrained = dropped + preset.without, preset.untrained
    wanted = model.state_dict()

    def faults_of(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
        left = {name: tensor for name, tensor in tensors.items() if not name.startswith(dropped)}
        missing = [name for name in wanted if name not in left and not name.startswith(untrained or (" ",))]
        unexpected = [name for name in left if name not in wanted]
        shared = [name for name in wanted if name in left]
        misshapen = [name for name in shared if wanted[name].shape != left[name].shape]
        faults = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
        if not any(faults.values()):
            model.load_state_dict(left, strict=False)
        return faults

    faults = faults_of(found)
    if any(faults.values()) and (translated := _translated(model, found)) is not None:
        after = faults_of(translated)
        if sum(map(len, after.values())) <= sum(map(len, faults.values())):
            return after
    return faults


def _translated(model: nn.Module, found: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors under the names that timm gives them today, where it knows how they were called before."""
    module = sys.modules[type(model).__module__]
    translate: Callable[..., Mapping[str, Tensor]] | None = getattr(module, "checkpoint_filter_fn", None)
    if translate is None:
        return None
    try:
        with named_faults():
            translated = dict(translate(dict(found), model))
    except (Unusable, OSError):
        return None
    # A new name is all that is taken from it: it also resamples what is of another size, and this is another encoder.
    own = {id(tensor) for tensor in found.values()}
    return translated if all(id(tensor) in own for tensor in translated.values()) else None


def read_weights(path: Path, asker: Asker) -> dict[str, Tensor]:
    """Read a file that maps names to plain tensors, or raise what the asker raises."""
    if path.suffix not in _SUFFIXES:
        said = "must be a .safetensors, .pth, .pt or .bin file"
        raise asker.of_file(f"weights file '{path}' {said}", said)
    try:
        content = read_checkpoint(path)
    except OSError as error:
        said = f"cannot be read: {error.strerror or error}"
        raise asker.of_file(f"weights file '{path}' {said}", said) from None
    except Unusable as error:
        raise asker.of_file(
            f"weights file '{path}' is damaged, or holds more than tensors and is refused because loading it could run "
            f"code ({error}); save the model's state_dict() as .safetensors",
            "the file is damaged, or holds more than tensors",
        ) from None
    # Training scripts commonly wrap the weights under one of these.
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and _is_plain(tensor) for name, tensor in content.items()
    ):
        raise asker.of_file(
            f"weights file '{path}' is not a state_dict: it must map names to tensors", "the file is not a state_dict"
        )
    declared = sum(tensor.numel() * tensor.element_size() for tensor in content.values())
    # A few bytes can be stretched to a tensor of any size; two names for one tensor are common.
    if declared > 2 * path.stat().st_size:
        said = "declares more values than it holds"
        raise asker.of_file(f"weights file '{path}' {said}", said)
    return content


def _is_plain(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and not (tensor.is_sparse or tensor.is_sparse_csr or tensor.is_quantized or tensor.is_nested)
    )


def _looks_like(found: Mapping[str, Tensor]) -> str:
    """Which published encoders have tensors of these shapes, in words."""
    shapes = Counter(tuple(tensor.shape) for tensor in found.values())
    alike: dict[str, float] = {}
    for name, others in outlines():
        share = (shapes & others).total() / max(shapes.total(), others.total())
        if share >= _ALIKE:
            alike[name] = share
    best = [name for name, share in alike.items() if share == max(alike.values())]
    return f". By its shapes it looks like encoder.name = {' or '.join(map(repr, best))}" if best else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
