"""Frozen foundation models: images in, embeddings out (phi in the paper)."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.presets import fetch, pooled
from client.pretrained import Asker, create, first_line, from_hub, packaged, version, weights_digest
from client.weights_file import from_file, preset_from_file
from common.config import EncoderSettings, SettingsError
from common.encoders import PIXEL_SIDE, PIXELS
from common.presets import PACKAGED, PACKAGED_SCALE, PRESETS, Scale
from common.randomness import generator

# Vectorised CPU kernels round the rows of a last, incomplete block differently. In batches of a multiple of this the
# embedding of an image is the same bits whatever it is batched with, so results do not depend on what a cache held.
_CPU_BLOCK = 16


class EncoderError(SettingsError):
    """An encoder that cannot be loaded or used; the message names it and says what to change."""


_ASKER = Asker("encoder.name", "encoder.weights", EncoderError)


class Encoder:
    """A frozen network that maps an image to a vector.

    Attributes
    ----------
    name : str
        The name it was configured by.
    identity : str
        Hex digest of everything an embedding depends on besides the image: equal identities, equal embeddings.
    size : int
        Side in pixels of the square images it takes.
    dimension : int
        Length d of an embedding.
    device : torch.device
        Where it computes.
    block : int
        Batches are computed in multiples of this many images; other batches are filled up.
    """

    def __init__(
        self, name: str, model: nn.Module, *, size: int, mean: Sequence[float], std: Sequence[float], precision: str
    ) -> None:
        self.name = name
        self.size = size
        self.dimension = _probe(name, model, size)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.block = _CPU_BLOCK if self.device.type == "cpu" else 1
        self._mixed = precision == "auto" and self.device.type == "cuda"
        facts = (name, size, tuple(mean), tuple(std), self.device.type, "mixed" if self._mixed else "float32")
        self.identity = hashlib.sha256(f"{facts} {weights_digest(model)}".encode()).hexdigest()
        # Images arrive in this layout, so nothing is transposed, and convolutions on CPU are a fifth faster in it.
        self._model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        # (x / 255 - mean) / std = offset + scale * x
        deviation = torch.tensor(std, device=self.device).view(1, -1, 1, 1)
        self._scale = 1 / (255 * deviation)
        self._offset = -torch.tensor(mean, device=self.device).view(1, -1, 1, 1) / deviation
        self._most = sys.maxsize

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embed images, uint8[n, size, size, 3] (RGB, 0 to 255), as float32[n, d].

        When the GPU runs out of memory, this batch and all later ones are made smaller.
        """
        if images.dtype != np.uint8 or images.shape[1:] != (self.size, self.size, 3):
            wanted = f"uint8[n, {self.size}, {self.size}, 3]"
            raise ValueError(f"encoder {self.name} takes {wanted}, not {images.dtype}{list(images.shape)}")
        embedded = np.empty((len(images), self.dimension), np.float32)
        done = 0
        while done < len(images):
            batch = images[done : done + self._most]
            try:
                features = self._forward(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                features = None
            if features is None:
                # Outside the handler, because the exception's traceback keeps the activations alive.
                self._most = len(batch) // 2
                torch.cuda.empty_cache()
                continue
            embedded[done : done + len(batch)] = features
            done += len(batch)
        if not np.isfinite(embedded).all():
            hint = "; set encoder.precision = 'float32'" if self._mixed else "; its weights are damaged or do not fit"
            raise EncoderError(f"encoder {self.name} gives embeddings that are not finite{hint}")
        return embedded

    def as_module(self) -> nn.Module:
        """The encoder with its preprocessing, uint8[n, size, size, 3] in, for a graph that holds all of it."""
        return _Whole(self._model, self._scale, self._offset).cpu().eval()

    @torch.inference_mode()
    def _forward(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        count = len(images)
        if missing := -count % self.block:
            images = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
        pixels = torch.from_numpy(np.require(images, requirements=["C", "W"])).to(self.device).permute(0, 3, 1, 2)
        with torch.autocast(self.device.type, enabled=self._mixed):
            features: Tensor = self._model(torch.addcmul(self._offset, pixels, self._scale))
        rows: NDArray[np.float32] = features[:count].float().cpu().numpy()
        return rows


class _Whole(nn.Module):
    scale: Tensor
    offset: Tensor

    def __init__(self, model: nn.Module, scale: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.model(self.offset + pixels.permute(0, 3, 1, 2) * self.scale)
        return features


def load_encoder(settings: EncoderSettings, seed: int) -> Encoder:
    """Load the configured encoder, or return the one this process has loaded already.

    `seed` is the run's; only untrained encoders depend on it.
    """
    return _load(
        settings.name,
        settings.weights,
        version(settings.weights, _ASKER),
        settings.image_size,
        settings.precision,
        seed if settings.name.startswith("random:") else 0,
        settings.dimensions,
    )


# One, because foundation models are large and a run uses one.
@lru_cache(maxsize=1)
def _load(
    name: str,
    weights: str,
    _weights_version: tuple[int, int],
    size: int,
    precision: str,
    seed: int,
    dimensions: int,
) -> Encoder:
    if name == PIXELS:
        size = size or PIXEL_SIDE
        flat = _projected(name, nn.Flatten(), size, dimensions)
        return Encoder(name, flat, size=size, mean=(0.0,) * 3, std=(1.0,) * 3, precision="float32")
    model, mean, std, made_for = _network(name, weights, seed)
    model.eval().requires_grad_(False)
    size = size or made_for
    _resize(name, model, size)
    model = _projected(name, model, size, dimensions)
    return Encoder(name, model, size=size, mean=mean, std=std, precision=precision)


def _network(name: str, weights: str, seed: int) -> tuple[nn.Module, Scale, Scale, int]:
    """The network behind a name, mean and spread of its images, and the size it was made for."""
    file = Path(weights).expanduser() if weights else None
    if preset := PRESETS.get(name):
        network = fetch(name, _ASKER) if file is None else preset_from_file(name, file, _ASKER)
        return pooled(network, preset), preset.mean, preset.std, preset.size
    kind, _, architecture = name.partition(":")
    if name in PACKAGED:
        network = packaged(PACKAGED[name], _ASKER)
    elif kind == "random":
        network = create(architecture, _ASKER, seed=seed)
    elif file is not None:
        network = from_file(architecture, file, _ASKER)
    else:
        network = from_hub(architecture, _ASKER)
    # Not for everybody: timm takes a second to import, and 120 MB.
    from timm.data.config import resolve_model_data_config

    made_for = resolve_model_data_config(network)  # type: ignore[no-untyped-call]
    mean, std = (PACKAGED_SCALE, PACKAGED_SCALE) if name in PACKAGED else (made_for["mean"], made_for["std"])
    return network, mean, std, int(made_for["input_size"][-1])


def _projected(name: str, model: nn.Module, size: int, dimensions: int) -> nn.Module:
    """The network with a Gaussian projection behind it, which keeps lengths and angles on average; 0: without."""
    if not dimensions:
        return model
    width = _probe(name, model, size)
    lots = generator(0, f"projection of {width} to {dimensions}").standard_normal((dimensions, width))
    behind = nn.Linear(width, dimensions, bias=False)
    behind.weight = nn.Parameter(torch.from_numpy((lots / math.sqrt(dimensions)).astype(np.float32)), False)
    return nn.Sequential(model, behind)


def _resize(name: str, model: nn.Module, size: int) -> None:
    """Transformers fix their input size; those that can change it resample their position embedding."""
    if not hasattr(model, "set_input_size"):
        return
    try:
        model.set_input_size(img_size=(size, size))  # type: ignore[operator]
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _size_error(name, size, error) from error


@torch.inference_mode()
def _probe(name: str, model: nn.Module, size: int) -> int:
    """Return the length of an embedding. Tried out, because architectures differ in what they take and give."""
    try:
        shape = tuple(model(torch.zeros(1, 3, size, size)).shape)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _size_error(name, size, error) from error
    if len(shape) != 2:
        raise EncoderError(f"encoder {name} gives features of shape {shape[1:]}, not one vector per image")
    return int(shape[1])


def _size_error(name: str, size: int, error: Exception) -> EncoderError:
    return EncoderError(
        f"encoder {name} does not take images of {size} px ({first_line(error)}); "
        "encoder.image_size = 0 is the size it was made for"
    )
