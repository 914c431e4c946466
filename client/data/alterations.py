"""Images as another device would have taken them: blurred, pale, inverted, noisy, turned or tinted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from client.data.samples import ImageSamples

# Part of every digest: raise it whenever the same alteration would give other pixels.
_FORMAT = 1

Change = Literal["blur", "contrast", "invert", "noise", "rotate", "colour"]

# Noise is drawn in so many cells a side, so that the model and the encoder see the same at their own resolutions.
_GRAIN = 32
# What a tint takes of red, green and blue; of grey it takes as much as of the luma of white.
_TINT = np.array([0.0, 1.0, 0.5], np.float32)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True, eq=False)
class Alteration:
    """What is done to the images of some samples; `positions` is int64 and sorted, `strength` lies in (0, 1]."""

    kind: Change
    strength: float
    positions: NDArray[np.int64]


def altered(
    pixels: NDArray[np.uint8], positions: NDArray[np.int64], alterations: Sequence[Alteration]
) -> NDArray[np.uint8]:
    """Apply alterations, one after the other, to those of the images uint8[n, size, size, channels] they are for.

    `positions[i]` is the sample that `pixels[i]` shows. The input is not changed.
    """
    for alteration in alterations:
        rows = np.isin(positions, alteration.positions)
        if rows.any():
            pixels = pixels.copy()
            pixels[rows] = _changed(pixels[rows], positions[rows], alteration)
    return pixels


def _changed(pixels: NDArray[np.uint8], positions: NDArray[np.int64], alteration: Alteration) -> NDArray[np.uint8]:
    # Only where a scenario of a simulation alters images.
    from scipy.ndimage import gaussian_filter, rotate

    strength = alteration.strength
    values = pixels.astype(np.float32)
    match alteration.kind:
        case "invert":
            return 255 - pixels
        case "contrast":
            values = 127.5 + (values - 127.5) * np.float32(1 - strength)
        case "blur":
            # In parts of the side, for the same reason as noise.
            sigma = strength * pixels.shape[1] / 8
            values = gaussian_filter(values, (0, sigma, sigma, 0), mode="nearest")
        case "noise":
            values += np.float32(127.5 * strength) * _noise(positions, pixels.shape[1])
        case "rotate":
            values = rotate(values, 180 * strength, (2, 1), reshape=False, order=1, mode="nearest")
        case "colour":
            taken = _TINT if pixels.shape[3] == 3 else _TINT @ _LUMA
            values *= 1 - np.float32(strength) * taken
    changed: NDArray[np.uint8] = np.rint(values.clip(0, 255)).astype(np.uint8)
    return changed


def _noise(positions: NDArray[np.int64], side: int) -> NDArray[np.float32]:
    """Standard normal noise float32[n, side, side, 1], the same for a sample whenever and by whomever it is seen."""
    cells = np.arange(side) * _GRAIN // side
    fields = [np.random.default_rng(int(position)).standard_normal((_GRAIN, _GRAIN)) for position in positions]
    noise: NDArray[np.float32] = np.array(fields, np.float32)[:, cells[:, np.newaxis], cells, np.newaxis]
    return noise


@dataclass(frozen=True, eq=False)
class AlteredSamples(ImageSamples):
    """A source seen through alterations; its digest is its own."""

    source: ImageSamples
    alterations: tuple[Alteration, ...]

    def name(self, position: int) -> str:
        return self.source.name(position)

    def original(self, position: int) -> Image.Image:
        return self.source.original(position)

    def image(self, position: int, size: int, channels: int) -> NDArray[np.uint8]:
        """Decode and alter one sample to uint8[size, size, channels], or raise `Undecodable`."""
        pixels = self.source.image(position, size, channels)
        return altered(pixels[np.newaxis], np.array([position], np.int64), self.alterations).reshape(pixels.shape)

    def alike(self, index: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.intp], ImageSamples]]:
        """Divide the samples in `index` by what is done to them.

        Yields positions in `index`, and the source with all samples altered so: the same for every site and round.
        """
        done = np.array([np.isin(index, alteration.positions) for alteration in self.alterations])
        everything = np.arange(len(self), dtype=np.int64)
        for pattern in np.unique(done, axis=1).T:
            steps = zip(self.alterations, pattern, strict=True)
            chosen = tuple(replace(step, positions=everything) for step, meant in steps if meant)
            yield np.flatnonzero((pattern == done.T).all(axis=1)), altered_samples(self.source, chosen)


def altered_samples(source: ImageSamples, alterations: tuple[Alteration, ...]) -> ImageSamples:
    """Return the source seen through alterations; without any it is the source itself."""
    if not alterations:
        return source
    digest = hashlib.sha256(f"{source.digest} {_FORMAT}".encode())
    for alteration in alterations:
        digest.update(f"\x1e{alteration.kind}\x1f{alteration.strength}\x1f".encode())
        digest.update(alteration.positions.tobytes())
    return AlteredSamples(
        source.labels, source.groups, source.splits, digest.hexdigest(), source.faults, source, alterations
    )
