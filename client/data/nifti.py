"""Slices of NIfTI-1 volumes in one file (.nii, .nii.gz): a header of 348 bytes, and the values as they lie there."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from client.data.pixels import check_deep, windowed
from common.foreign import LARGEST_VOLUME, Unusable

SUFFIXES = (".nii", ".nii.gz")
_HEADER, _MAGIC = 348, b"n+1\0"
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}


def image(path: Path, number: int) -> Image.Image:
    """A slice across the third axis, counted from 1; 0: the middle one. The first axis goes right, the second up."""
    return Image.fromarray(windowed(slice_of(path, number).T[::-1]))


def slice_of(path: Path, number: int) -> NDArray[np.float64]:
    """The values of a slice as they are meant, float64[first axis, second axis]; of a series its first volume."""
    packed = path.name.lower().endswith(".gz")
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if packed else raw as file:
        header = file.read(_HEADER)
        if len(header) < _HEADER or header[344:348] != _MAGIC:
            raise Unusable("it is not a NIfTI-1 file in one piece")
        order = "<" if header[:4] == struct.pack("<i", _HEADER) else ">"
        dimensions = struct.unpack(f"{order}8h", header[40:56])
        (kind,) = struct.unpack(f"{order}h", header[70:72])
        offset, slope, intercept = struct.unpack(f"{order}3f", header[108:120])
        width, height, depth = _shape(dimensions)
        if kind not in _TYPES:
            raise Unusable(f"its values are of type {kind}, which is none of plain numbers")
        dtype = np.dtype(order + _TYPES[kind])
        if not _HEADER <= offset < LARGEST_VOLUME:
            raise Unusable(f"its values begin at byte {offset:g}")
        if number > depth:
            raise Unusable(f"it has {depth} slices, and none with the number {number}")
        check_deep(width, height)
        size = width * height * dtype.itemsize
        begin = int(offset) + ((number or (depth + 1) // 2) - 1) * size
        if begin + size > LARGEST_VOLUME:
            raise Unusable(f"it is larger than {LARGEST_VOLUME / 1e6:g} MB")
        file.seek(begin)  # a packed file unpacks every byte before, a few at a time
        content = file.read(size)
    if len(content) < size:
        raise Unusable("it ends before its values do")
    stored = np.frombuffer(content, dtype).reshape((width, height), order="F")
    values: NDArray[np.float64] = stored.astype(np.float64)
    # A slope of 0 says that there is none.
    if slope == 0 or not (math.isfinite(slope) and math.isfinite(intercept)):
        return values
    return values * float(slope) + float(intercept)


def _shape(dimensions: tuple[int, ...]) -> tuple[int, int, int]:
    count, (width, height, depth) = dimensions[0], dimensions[1:4]
    depth = depth if count >= 3 else 1
    if not 2 <= count <= 7 or min(width, height, depth) < 1:
        raise Unusable(f"its dimensions are {dimensions}")
    return width, height, depth
