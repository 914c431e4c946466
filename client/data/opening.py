"""One image out of a file: whichever frame, slice or region of it a source names, by whoever can read it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from client.data import dicom, nifti
from client.data.pixels import plain

# Named, so that a file that only pretends to be an image never reaches an interpreter (EPS) or a rare plugin.
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM", "JPEG2000")
_PICTURES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".pgm", ".ppm", ".pnm", ".pbm", ".jp2",
)  # fmt: skip
# 100 megapixels; a decoder asks for all of them at once, in each of its threads.
MOST_PIXELS = 100_000_000
_LONGEST_SIDE = 65_535


@dataclass(frozen=True)
class Part:
    """What of a file an image is.

    Attributes
    ----------
    frame
        Frame or slice, counted from 1; 0: the middle one of a volume, the first one of a picture.
    region
        Left, top, width and height in pixels; None: all.
    """

    frame: int = 0
    region: tuple[int, int, int, int] | None = None

    def __str__(self) -> str:
        frame = f" frame {self.frame}" if self.frame else ""
        return frame + (f" at {self.region[0]},{self.region[1]}" if self.region else "")


WHOLE = Part()


def why_not(path: Path) -> str:
    """Say why a file cannot be an image here, by its name and its first bytes; nothing if it may be one."""
    name = path.name.lower()
    if name.endswith((*_PICTURES, *nifti.SUFFIXES)):
        return ""
    if not dicom.may_be(path):
        return "is not an image by its name"
    if importlib.util.find_spec("pydicom") is None:
        return "is DICOM, which needs another package: pip install coterie[dicom]"
    return ""


def opened(path: Path, part: Part = WHOLE) -> Image.Image:
    """The image in mode L or RGB, at its own resolution, or an exception of any kind that says why there is none."""
    name = path.name.lower()
    if name.endswith(nifti.SUFFIXES):
        image = nifti.image(path, part.frame)
    elif name.endswith(_PICTURES):
        image = _picture(path, part.frame)
    else:
        image = dicom.image(path, part.frame)
    return image if part.region is None else _cut(image, part.region)


def _picture(path: Path, frame: int) -> Image.Image:
    with Image.open(path, formats=_FORMATS) as image:
        if frame:
            image.seek(frame - 1)
        check_size(*image.size)
        return plain(image)


def check_size(width: int, height: int) -> None:
    """Raise if an image is too large, by what its header says, before a decoder asks for the memory."""
    if width * height > MOST_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise ValueError(f"has {width} × {height} pixels; at most {MOST_PIXELS // 10**6} million are read")


def _cut(image: Image.Image, region: tuple[int, int, int, int]) -> Image.Image:
    left, top, width, height = region
    if left + width > image.width or top + height > image.height:
        raise ValueError(
            f"has {image.width} × {image.height} pixels, and no region of {width} × {height} at {left},{top}"
        )
    return image.crop((left, top, left + width, top + height))
