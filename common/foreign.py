"""Files and texts that others made: read within bounds, or refused in words.

A few bytes can ask for gigabytes or nest without end, and the libraries that read them raise a dozen kinds of errors.
Whoever reads goes through here and meets `OSError`, where a file is not there or the disk fails, or `Unusable`.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

# NumPy is imported late, below: commands that read a setting need not wait for it.
if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_TEXT = 16_000_000  # bytes of a TOML file; a schema with correlations of a thousand columns has ten
LARGEST_JSON = 200_000_000
# Beyond any data set that fits into a machine; its declared size is held against what is there, too.
LARGEST_ARRAYS = 64_000_000_000
LARGEST_VOLUME = 1_000_000_000  # bytes of an image with many frames or slices
LONGEST_HEADER = 10_000_000  # bytes, of a file of tensors; about a hundred for each, which take thirty times that
_LONGEST_LINE = 4_000_000  # characters, of a table
_DEEPEST = 64
_MOST_MEMBERS = 1_000
_MOST_DIMENSIONS = 32
# How many times smaller than its content a member of an archive may be: the most that zlib achieves.
_MOST_SHRUNK = 1_100
_LARGEST_WHOLE = 2**64

# One that does not end goes to the end: whatever the text, each of its bytes is looked at once.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)', re.DOTALL)
# Whole numbers beyond any that a count or a seed can be, and others that would become infinite.
_HUGE = re.compile(rb"(?<![\d.])\d{21,}|[eE]\+?0*(?:[3-9]\d\d|[1-9]\d{3})")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Unusable(ValueError):
    """What others made, and cannot be used; the message says why."""


@contextmanager
def named_faults() -> Iterator[None]:
    """Whatever a library raises over what others made, but for failing disks, is `Unusable`."""
    try:
        yield
    except (Unusable, OSError):
        raise
    except RecursionError:
        raise Unusable(f"it is nested deeper than {_DEEPEST} levels") from None
    except MemoryError:
        raise Unusable("it asks for more memory than there is") from None
    # Of a file made with intent they raise nearly anything: RuntimeError, SystemError, TokenError, struct.error …
    except Exception as error:
        raise Unusable(" ".join(str(error).split())[:200] or type(error).__name__) from None


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Read a file of at most so many bytes."""
    with named_faults():
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise Unusable(f"it is larger than {most / 1e6:g} MB")
        return content


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Read a file of UTF-8."""
    with named_faults():
        return read_bytes(path, most).decode()


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each line of a CSV file that is not empty."""
    # Spreadsheets put a byte order mark in front.
    with named_faults(), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_lines(file))
        for cells in reader:
            if cells:
                yield reader.line_num, cells


def _lines(file: IO[str]) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise Unusable(f"it has a line of more than {_LONGEST_LINE / 1e6:g} million characters")
        yield line


# --- TOML and JSON ---------------------------------------------------------------------------------------------------


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(read_text(path))


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML whose numbers are finite and of at most 64 bits."""
    with named_faults():
        table = tomllib.loads(text)
        _check_values(table)
        return table


def read_json(path: Path, most: int = LARGEST_JSON) -> Any:
    """Read a JSON file."""
    return parse_json(read_bytes(path, most))


def parse_json(content: bytes | str) -> Any:
    """Read JSON whose numbers are finite and of at most twenty digits."""
    with named_faults():
        raw = content.encode() if isinstance(content, str) else content
        bare = _STRING.sub(b"", raw)
        if _HUGE.search(bare):
            raise Unusable("it holds a number beyond all bounds")
        depth = deepest = 0
        for bracket in bare.translate(None, _NOT_BRACKETS):
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
        if deepest > _DEEPEST:
            raise RecursionError
        return json.loads(raw, parse_constant=_not_finite)


def _not_finite(name: str) -> NoReturn:
    raise Unusable(f"it holds {name}, which is no number")


def _check_values(table: dict[str, Any]) -> None:
    """Raise over nesting and numbers; without recursion, because dotted keys nest without any."""
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif type(value) is int and abs(value) >= _LARGEST_WHOLE:
                raise Unusable("it holds a number beyond all bounds")
            elif type(value) is float and not math.isfinite(value):
                raise Unusable(f"it holds {value}, which is no number")
        if not below:
            return
        level = below
    raise RecursionError


# --- arrays ----------------------------------------------------------------------------------------------------------


def read_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read a .npy file of plain values; `mapped`: from the disk as it is used."""
    import numpy as np

    with named_faults():
        with path.open("rb") as file:
            _check_array(file, path.stat().st_size)
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        return array


def read_archive(path: Path, wanted: set[str]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Read the wanted arrays of a .npz file; return them and the names of all that it has."""
    import numpy as np

    with named_faults():
        _check_archive(path, wanted)
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise Unusable("it is not a .npz file")
            return {name: archive[name] for name in archive.files if name in wanted}, archive.files


def _check_archive(path: Path, wanted: set[str]) -> None:
    total = 0
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_MEMBERS:
            raise Unusable(f"it has more than {_MOST_MEMBERS} members")
        if len({entry.filename for entry in entries}) < len(entries):
            raise Unusable("it has a member twice")
        for entry in entries:
            if entry.filename.removesuffix(".npy") not in wanted:
                continue
            total += entry.file_size
            if entry.file_size > entry.compress_size * _MOST_SHRUNK or total > LARGEST_ARRAYS:
                raise Unusable(f"{entry.filename} declares more bytes than it can have")
            with archive.open(entry) as file:
                _check_array(file, entry.file_size)


def _check_array(file: IO[bytes], size: int) -> None:
    """Hold what the header of an array declares against the bytes that are there, before any memory is asked for."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:
        raise Unusable(f"its arrays are of version {version}, not 1.0 or 2.0")
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise Unusable("it holds objects or records, not plain values")
    if len(shape) > _MOST_DIMENSIONS or any(type(side) is not int or side < 0 for side in shape):
        raise Unusable(f"it has an array of the shape {str(shape)[:100]}")
    declared = math.prod(shape) * dtype.itemsize
    if declared > LARGEST_ARRAYS or file.tell() + declared != size:
        raise Unusable(f"it declares {dtype}{shape}, which is not what is in it"[:200])


# --- tensors ---------------------------------------------------------------------------------------------------------


def parse_tensors(data: bytes, longest_header: int = LONGEST_HEADER) -> dict[str, NDArray[Any]]:
    """Read named arrays; the library holds what their header says against the bytes that are there."""
    import safetensors.numpy

    if int.from_bytes(data[:8], "little") > longest_header:
        raise Unusable("its header is too long")
    with named_faults():
        arrays: dict[str, NDArray[Any]] = safetensors.numpy.load(data)
        return arrays


def view_tensors(data: bytes, longest_header: int = LONGEST_HEADER) -> dict[str, NDArray[Any]]:
    """Read named arrays, which stay where they are: they cannot be written to, and keep all of `data` alive.

    The library would copy them. What it looks at is looked at here: tensors lie one after the other, and are all there
    is.
    """
    import numpy as np

    length = int.from_bytes(data[:8], "little")
    if length > longest_header:
        raise Unusable("its header is too long")
    with named_faults():
        header = parse_json(data[8 : 8 + length])
        if len(data) < 8 + length or not isinstance(header, dict):
            raise Unusable("it has no header")
        header.pop("__metadata__", None)
        arrays: dict[str, NDArray[Any]] = {}
        end = 0
        for name, told in sorted(header.items(), key=lambda item: _place(item[1])):
            dtype, shape, (start, stop) = np.dtype(_DTYPES[told["dtype"]]), told["shape"], _place(told)
            count = math.prod(shape)
            if any(type(side) is not int or side < 0 for side in shape) or len(shape) > _MOST_DIMENSIONS:
                raise Unusable(f"it has an array of the shape {str(shape)[:100]}")
            if start != end or stop - start != count * dtype.itemsize or 8 + length + stop > len(data):
                raise Unusable(f"it declares {dtype}{shape} at {start}, which is not what is in it"[:200])
            arrays[name] = np.frombuffer(data, dtype, count, 8 + length + start).reshape(shape)
            end = stop
        if 8 + length + end != len(data):
            raise Unusable("it holds more than it declares")
        return arrays


def _place(told: Any) -> tuple[int, int]:
    """Where a tensor lies, from and to."""
    start, stop = told["data_offsets"]
    if type(start) is not int or type(stop) is not int:
        raise Unusable("its tensors lie nowhere")
    return start, stop


_DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], Mapping[str, str]]:
    """Read named arrays and what is noted about them."""
    from safetensors import safe_open

    with named_faults():
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > LONGEST_HEADER:
                raise Unusable("its header is too long")
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return arrays, file.metadata() or {}


# The records of torch's archives: names of tensors and their shapes, and the values, one file for each.
_PICKLE, _MOST_RECORDS = "data.pkl", 100_000


def read_checkpoint(path: Path) -> Any:
    """Read a file of torch's, .safetensors or an archive of plain tensors, to what it holds; no code in it is run."""
    import torch

    with named_faults():
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            with path.open("rb") as file:
                if int.from_bytes(file.read(8), "little") > LONGEST_HEADER:
                    raise Unusable("its header is too long")
            return load_file(path)
        _check_checkpoint(path)
        return torch.load(path, map_location="cpu", weights_only=True)


def _check_checkpoint(path: Path) -> None:
    """Hold what an archive of torch's declares against the bytes that are there: its records are never compressed."""
    if not zipfile.is_zipfile(path):
        raise Unusable("it is no archive of torch 1.6 or later")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_RECORDS:
            raise Unusable(f"it has more than {_MOST_RECORDS} members")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise Unusable(f"{entry.filename[:100]} is compressed")
            if entry.filename.rpartition("/")[2] == _PICKLE and entry.file_size > LONGEST_HEADER:
                raise Unusable("its list of tensors is too long")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise Unusable("it declares more bytes than it has")
