"""DICOM: a frame as a radiologist sees it, and whose it is, told by a word that says nothing of the patient."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from client.data.pixels import check_deep, windowed
from common.config import SettingsError
from common.foreign import LARGEST_VOLUME, Unusable, named_faults, read_bytes
from common.lock import exclusive

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_SUFFIXES = (".dcm", ".dicom", ".ima")
_PREAMBLE = 128
_MOST_PIXELS = 100_000_000
# Whose content is packed as a whole: a few bytes could ask for any amount of memory.
_DEFLATED = ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.8.1")
_ABOUT = ["PatientID", "StudyInstanceUID", "BurnedInAnnotation"]
_NEEDED = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "WindowCenter", "WindowWidth",
    "VOILUTFunction", "RescaleIntercept", "RescaleSlope", "RedPaletteColorLookupTableDescriptor",
    "GreenPaletteColorLookupTableDescriptor", "BluePaletteColorLookupTableDescriptor",
    "RedPaletteColorLookupTableData", "GreenPaletteColorLookupTableData", "BluePaletteColorLookupTableData",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence", "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths", "PixelData",
]  # fmt: skip


def may_be(path: Path) -> bool:
    """Whether a file is DICOM by its name or, as many have no ending, by its first bytes."""
    if path.suffix.lower() in _SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            return file.read(_PREAMBLE + 4)[_PREAMBLE:] == b"DICM"
    except (OSError, ValueError):
        return False


# --- pixels ----------------------------------------------------------------------------------------------------------


def image(path: Path, number: int) -> Image.Image:
    """A frame, counted from 1, through the window that the file asks for; 0: the middle one."""
    from pydicom import dcmread

    with named_faults():
        if _is_packed(path):
            raise Unusable("it is deflated; save it in another transfer syntax")
        # From memory: whatever length is declared, no more is asked for than there is.
        data = dcmread(BytesIO(read_bytes(path, LARGEST_VOLUME)), specific_tags=_NEEDED)
        return Image.fromarray(_shown(data, number))


def _is_packed(path: Path) -> bool:
    from pydicom.filereader import read_file_meta_info

    return read_file_meta_info(path).get("TransferSyntaxUID") in _DEFLATED


def _shown(data: Dataset, number: int) -> NDArray[np.uint8]:
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    frames, rows, columns = int(data.get("NumberOfFrames") or 1), int(data.Rows), int(data.Columns)
    if rows * columns > _MOST_PIXELS:
        raise Unusable(f"has {columns} × {rows} pixels; at most {_MOST_PIXELS // 10**6} million are read")
    if number > frames:
        raise Unusable(f"it has {frames} frames, and none with the number {number}")
    place = (number or (frames + 1) // 2) - 1
    kind = str(data.PhotometricInterpretation)
    if kind.startswith("MONOCHROME"):
        check_deep(columns, rows)
    values = pixel_array(data, index=place)
    if kind == "PALETTE COLOR":
        values = apply_color_lut(values, data)
        values = values if values.dtype == np.uint8 else (values >> 8).astype(np.uint8)
    if not kind.startswith("MONOCHROME"):
        if values.dtype != np.uint8 or values.ndim != 3 or values.shape[2] != 3:
            raise Unusable(f"its colours, {kind}, are {values.dtype}{values.shape}; they must have 8 bits")
        return np.ascontiguousarray(values)
    grey = _grey(data, values, place)
    return 255 - grey if kind == "MONOCHROME1" else grey


def _grey(data: Dataset, values: NDArray[Any], place: int) -> NDArray[np.uint8]:
    """Stored values → what they measure → grey levels."""
    scale = _of_frame(data, place, "PixelValueTransformationSequence")
    slope, intercept = float(scale.get("RescaleSlope") or 1), float(scale.get("RescaleIntercept") or 0)
    measured = values.astype(np.float64) * slope + intercept
    window = _of_frame(data, place, "FrameVOILUTSequence")
    centre, width = _first(window.get("WindowCenter")), _first(window.get("WindowWidth"))
    if centre is None or width is None or not (math.isfinite(centre) and 1 <= width < math.inf):
        padding = data.get("PixelPaddingValue")
        return windowed(measured, None if padding is None else values != padding)
    return through_window(measured, centre, width, str(window.get("VOILUTFunction") or "LINEAR"))


def through_window(
    values: NDArray[np.float64], centre: float, width: float, function: str = "LINEAR"
) -> NDArray[np.uint8]:
    """Grey levels of a window, as the standard has them (PS3.3, C.11.2.1)."""
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            levels = 1 / (1 + np.exp(-4 * (values - centre) / width))
    elif function == "LINEAR_EXACT":
        levels = (values - centre) / width + 0.5
    elif width == 1:
        levels = (values > centre - 0.5).astype(np.float64)
    else:
        levels = (values - (centre - 0.5)) / (width - 1) + 0.5
    return np.rint(255 * np.clip(levels, 0, 1)).astype(np.uint8)


def _of_frame(data: Dataset, place: int, name: str) -> Dataset:
    """Where a file of many frames has what it says of one, of all, or of its only one."""
    each, shared = data.get("PerFrameFunctionalGroupsSequence"), data.get("SharedFunctionalGroupsSequence")
    for groups, at in ((each, place), (shared, 0)):
        if groups and at < len(groups) and (found := groups[at].get(name)):
            item: Dataset = found[0]
            return item
    return data


def _first(value: Any) -> float | None:
    """A number, or the first of several: a file may offer windows to choose from."""
    if value is None or value == "":
        return None
    try:
        return float(value)
    except TypeError:
        return float(value[0]) if len(value) else None


# --- patients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """What a header says beside the pixels: whose they are, and whether words are burnt into them."""

    patient: str = ""
    burnt_in: bool = False


def about(path: Path, size: int, time: int) -> About:
    """Read what a header says; of a file that cannot be read nothing. `size` and `time` tell a changed file."""
    try:
        return _about(path, size, time)
    except (Unusable, OSError, MemoryError):
        return About()  # whoever decodes it will say what is wrong


@lru_cache(maxsize=100_000)
def _about(path: Path, _size: int, _time: int) -> About:
    from pydicom import dcmread

    with named_faults():
        if _is_packed(path):
            return About()
        data = dcmread(path, stop_before_pixels=True, specific_tags=_ABOUT)
        # Who was made anonymous may still have studies that stay together.
        patient = str(data.get("PatientID") or "").strip() or str(data.get("StudyInstanceUID") or "").strip()
        return About(patient, str(data.get("BurnedInAnnotation") or "").strip().upper() == "YES")


class Patients:
    """Words for patients: the same for the same one, and nobody without the site's secret can tell of whom.

    `secret` is a file that is made when it is first needed and stays at the site; None: a simulation, which has every
    image at hand and must deal them alike wherever it runs.
    """

    def __init__(self, secret: Path | None = None) -> None:
        self._file = secret
        self._secret: bytes | None = b"" if secret is None else None

    def word(self, patient: str) -> str:
        """The word for a patient."""
        if self._secret is None:
            assert self._file is not None
            try:
                self._secret = _kept_secret(self._file)
            except (OSError, Unusable) as error:
                raise SettingsError(f"the secret that hides patients cannot be kept in {self._file}: {error}") from None
        return f"patient {hmac.new(self._secret, patient.encode(), hashlib.sha256).hexdigest()[:24]}"


def _kept_secret(file: Path) -> bytes:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive(file.with_suffix(".lock")):
        if not file.exists():
            new = file.with_suffix(".new")
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
                handle.write(secrets.token_bytes(32))
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(new, file)
        found = read_bytes(file, 1_000)
    if len(found) < 32:
        raise Unusable("it is damaged: restore it, or remove it, and patients get other words")
    return found
