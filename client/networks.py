"""The network of a run at a site: with its pretrained weights, and of others' code only what is allowed."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import lru_cache
from pathlib import Path

from torch import nn

from client.flower.bundle import bundles
from client.identity import Identity
from client.pretrained import Asker, create, from_hub, packaged, version, weights_digest
from client.weights_file import from_file
from common.config import SiteSettings, TrainSettings
from common.encoders import NO_FILE
from common.networks import Design, build_design, design_of
from common.own_network import NetworkError
from common.presets import PACKAGED, PACKAGED_SCALE

_ASKER = Asker("train.model", "train.weights", NetworkError)
_AT_A_SITE = Asker("train.model", "network_weights in site.toml", NetworkError)


def network_of(settings: SiteSettings, identity: Identity) -> nn.Module:
    """The network of a run, built once per process: every message overwrites all of its state."""
    require_allowed(settings.train.model, identity)
    asker = _ASKER if identity.is_simulated else _AT_A_SITE
    return network_with(design_of(settings), own_weights(settings.train, identity), settings.seed, asker)


def frozen_digest(network: nn.Module) -> str:
    """What tells the pretrained weights of a network from others; empty if it has none."""
    return str(getattr(network, "digest", ""))


def own_weights(train: TrainSettings, identity: Identity) -> str:
    """Where this site has the pretrained weights of a run from; a file is its own, unless the site is simulated."""
    if not train.model.startswith("timm:"):
        return ""
    weights = named_weights(train.model, train.weights)
    if identity.is_simulated or weights in ("packaged", "random"):
        return weights
    if identity.network_weights is not None:
        return str(identity.network_weights)
    if weights != "hub":
        # A path named by the server is never opened on a site's disk.
        raise NetworkError(
            f"this run tunes {train.model} on a weights file: set network_weights in site.toml to your copy of it"
        )
    return weights


def named_weights(model: str, weights: str) -> str:
    """What `train.weights` stands for where it is empty."""
    return weights or ("packaged" if model.partition(":")[2] in PACKAGED.values() else "hub")


def require_allowed(model: str, identity: Identity) -> None:
    """Raise unless the site may import the network: of its own packages, one that its operator has named."""
    kind, _, reference = model.partition(":")
    if kind != "python" or identity.in_engine:
        return
    if reference not in identity.networks:
        raise NetworkError(
            f"this run trains the network python:{reference}, which this site does not allow: if you trust it, install "
            f'its package and add the line networks = ["{reference}"] to site.toml'
        )
    package = reference.partition(":")[0].partition(".")[0]
    try:
        # Of a package without dots nothing is imported to find it.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(Path(place).resolve().is_relative_to(bundles().resolve()) for place in places if place):
        raise NetworkError(
            f"the package {package} came with the run's own code, and this site imports networks only from what is "
            "installed here: install it"
        )


def network_with(design: Design, weights: str, seed: int, asker: Asker = _ASKER) -> nn.Module:
    """Build a network; `weights` of a pretrained one are packaged, hub, random or a file."""
    known = (0, 0) if weights in NO_FILE else version(weights, asker)
    return _built(design, weights, known, seed if weights == "random" else 0, asker)


@lru_cache(maxsize=1)
def _built(design: Design, weights: str, _version: tuple[int, int], seed: int, asker: Asker) -> nn.Module:
    kind, architecture = design.kind
    if kind != "timm":
        return build_design(design, None)
    # Not for everybody: timm takes a second to import, and 120 MB.
    from timm.data.config import resolve_model_data_config

    from common.backbones import assemble, set_size

    scale = None
    if weights == "packaged":
        backbone, scale = packaged(architecture, asker), (PACKAGED_SCALE, PACKAGED_SCALE)
    elif weights == "hub":
        backbone = from_hub(architecture, asker)
    elif weights == "random":
        backbone = create(architecture, asker, seed=seed)
    else:
        backbone = from_file(architecture, Path(weights).expanduser(), asker)
    made_for = resolve_model_data_config(backbone)  # type: ignore[no-untyped-call]
    facts = architecture, *(scale or (made_for["mean"], made_for["std"]))
    # Before the size is set, which computes: other processors may round otherwise.
    digest = hashlib.sha256(f"{facts} {weights_digest(backbone)}".encode()).hexdigest()
    set_size(architecture, backbone, design.image_size)
    return assemble(
        architecture,
        backbone,
        classes=design.classes,
        size=design.image_size,
        tune=design.tune,
        scale=scale,
        digest=digest,
    )
