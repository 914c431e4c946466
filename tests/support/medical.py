"""Small files of medical images, written as devices would write them, or with intent."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

config.settings.writing_validation_mode = config.IGNORE


def write_dicom(path: Path, values: NDArray[Any], *, frames: int = 1, **tags: Any) -> Path:
    """A file of a CT, stored values as given: [h, w], [h, w, 3] or, of several frames, [frames, h, w]."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = tags.pop("syntax", ExplicitVRLittleEndian)
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=[str(path)])
    colours = values.shape[-1] == 3 and values.ndim == 3 and frames == 1
    data.Rows, data.Columns = values.shape[-3:-1] if colours else values.shape[-2:]
    data.SamplesPerPixel = 3 if colours else 1
    data.PhotometricInterpretation = "RGB" if colours else "MONOCHROME2"
    if colours:
        data.PlanarConfiguration = 0
    if frames > 1:
        data.NumberOfFrames = frames
    data.BitsAllocated = data.BitsStored = 8 * values.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(values.dtype.kind == "i")
    data.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_nifti(
    path: Path, values: NDArray[Any], *, order: str = "<", slope: float = 0.0, intercept: float = 0.0, shape: Any = None
) -> Path:
    kinds = {"u1": 2, "i2": 4, "i4": 8, "f4": 16, "f8": 64, "i1": 256, "u2": 512, "u4": 768}
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    shape = shape or values.shape
    struct.pack_into(f"{order}8h", header, 40, len(shape), *(*shape, *[1] * (7 - len(shape))))
    struct.pack_into(f"{order}2h", header, 70, kinds[values.dtype.str[1:]], 8 * values.dtype.itemsize)
    struct.pack_into(f"{order}3f", header, 108, 352, slope, intercept)
    header[344:348] = b"n+1\0"
    content = bytes(header) + values.astype(values.dtype.newbyteorder(order)).tobytes(order="F")
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path
