"""Images as another device would have taken them: blurred, pale or inverted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from client.data.samples import ImageSamples

# Part of every digest: raise it whenever the same alteration would give other pixels.
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Alteration:
    """What is done to the images of some samples; `positions` is int64 and sorted, `strength` lies in (0, 1]."""

    kind: Literal["blur", "contrast", "invert"]
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
            pixels[rows] = _changed(pixels[rows], alteration)
    return pixels


def _changed(pixels: NDArray[np.uint8], alteration: Alteration) -> NDArray[np.uint8]:
    if alteration.kind == "invert":
        return 255 - pixels
    values = pixels.astype(np.float32)
    if alteration.kind == "contrast":
        values = 127.5 + (values - 127.5) * np.float32(1 - alteration.strength)
    else:
        # In parts of the side, so that the model and the encoder see the same blur at their own resolutions.
        sigma = alteration.strength * pixels.shape[1] / 8
        values = gaussian_filter(values, (0, sigma, sigma, 0), mode="nearest")
    return np.rint(values).astype(np.uint8)


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
