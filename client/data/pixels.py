"""From whatever an image file or an array holds to square 8-bit grey or RGB pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

# Detectors deliver 10, 12 or 14 bits in a 16-bit container; scaling those by 65535 would leave a nearly black image.
_DEPTHS = (8, 10, 12, 14, 16)
# Of the values of a deep image, the share in percent that is darker than black, and brighter than white.
_DARKEST, _BRIGHTEST = 0.5, 99.5
# Of an image of more than 8 bits: on the way to grey levels a pixel takes 20 bytes, and in a packed file less than one.
_MOST_DEEP = 40_000_000


def to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale pixel values of any customary type to 0..255, keeping the shape.

    Booleans and floats in [0, 1] are stretched; floats and integers up to 255 are taken as they are; larger integers
    are scaled by the smallest customary bit depth (10, 12, 14, 16) that holds the brightest pixel.

    Raises
    ------
    ValueError
        If values are negative, not finite or beyond 16 bits.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return np.where(values, np.uint8(255), np.uint8(0))
    if values.dtype.kind not in "iuf":
        raise ValueError(f"pixels of type {values.dtype} are not numbers")
    if values.size == 0:
        return values.astype(np.uint8)
    if not np.isfinite(values).all():
        raise ValueError("pixels that are not finite")
    low, high = float(values.min()), float(values.max())
    if low < 0:
        raise ValueError(f"negative pixels (down to {low:g})")
    if values.dtype.kind == "f":
        if high > 255:
            raise ValueError(f"floating-point pixels up to {high:g}; allowed are 0..1 or 0..255")
        top = 1.0 if high <= 1 else 255.0
    else:
        depth = next((bits for bits in _DEPTHS if high < 2**bits), None)
        if depth is None:
            raise ValueError(f"pixels up to {high:g} need more than 16 bits")
        top = float(2**depth - 1)
    return np.rint(values * np.float32(255.0 / top)).astype(np.uint8)


def check_deep(width: int, height: int) -> None:
    """Raise if an image of more than 8 bits is too large, by what its header says, before its values are read."""
    if width * height > _MOST_DEEP:
        raise ValueError(
            f"has {width} × {height} pixels of more than 8 bits; at most {_MOST_DEEP // 10**6} million are read"
        )


def windowed(values: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """Grey levels of an image of more than 8 bits: between the percentiles 0.5 and 99.5 of its own values, stretched.

    So a few glaring pixels do not leave the rest in the dark. `counted`: the pixels that are of the image at all.

    Raises
    ------
    ValueError
        If values are not finite.
    """
    if values.dtype.kind not in "biuf":
        raise ValueError(f"pixels of type {values.dtype} are not numbers")
    if not np.isfinite(values).all():
        raise ValueError("pixels that are not finite")
    seen = values if counted is None else values[counted]
    if seen.size == 0:
        return np.zeros(values.shape, np.uint8)
    low, high = (float(bound) for bound in np.percentile(seen, (_DARKEST, _BRIGHTEST)))
    if low >= high:
        low, high = float(seen.min()), float(seen.max())
    if low >= high:
        return np.zeros(values.shape, np.uint8)
    stretched = (values.astype(np.float64) - low) * (255 / (high - low))
    return np.rint(np.clip(stretched, 0, 255)).astype(np.uint8)


def plain(image: Image.Image) -> Image.Image:
    """Return the image in mode L or RGB, upright, with nothing clipped and nothing hidden behind transparency."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        check_deep(*image.size)
        # Pillow's own conversion clips these at 255 instead of scaling them.
        return Image.fromarray(windowed(np.asarray(image)))
    grey = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        # Colours under transparent pixels are arbitrary; black is what scans are padded with.
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer)
    return image.convert("L" if grey else "RGB")


def square(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
    """Resize a plain image to uint8[size, size, channels].

    Bilinear with antialiasing. The whole image is kept (the aspect ratio is not), because what matters in a scan may
    lie at its border. Grey becomes RGB by repetition, RGB becomes grey by luma.
    """
    if channels == 1:
        image = image.convert("L")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    return np.broadcast_to(pixels, (size, size, channels))
