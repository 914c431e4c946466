"""Keeps a library of CUDA's from filling memory where there is no GPU: `python3 docker/without_gpu.py [FOLDER]`.

PyPI's torch loads NVIDIA's libraries, used or not. When libcublasLt is loaded, its constructors write tables of kernels
into 95 MB of memory, in every process that imports torch. Here they are taken off its list of constructors, for good:
this torch computes on a CPU as before, and not on a GPU any more. For an image that is built with --build-arg GPU=no.
Needs Python alone.
"""

from __future__ import annotations

import struct
import sys
import sysconfig
from pathlib import Path
from typing import IO

_PROGRAM_HEADERS, _DYNAMIC, _CONSTRUCTORS = 32, 2, 27  # where they stand in ELF, PT_DYNAMIC, DT_INIT_ARRAYSZ


def silence(library: Path) -> None:
    """Set the size of a library's list of constructors to 0."""
    with library.open("r+b") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            raise SystemExit(f"{library} is no 64-bit library of this kind of machine")
        place, size = _dynamic(file)
        for entry in range(place, place + size, 16):
            file.seek(entry)
            tag, _ = struct.unpack("<qQ", file.read(16))
            if tag == _CONSTRUCTORS:
                file.seek(entry + 8)
                file.write(bytes(8))
                return
    raise SystemExit(f"{library} has no list of constructors")


def _dynamic(file: IO[bytes]) -> tuple[int, int]:
    """Where the table of what the loader must know lies, and its length."""
    file.seek(0)
    header = file.read(64)
    (start,) = struct.unpack_from("<Q", header, _PROGRAM_HEADERS)
    size, count = struct.unpack_from("<HH", header, 54)
    for number in range(count):
        file.seek(start + number * size)
        kind, _, place, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
        if kind == _DYNAMIC:
            return place, length
    raise SystemExit("it is no library")


def main() -> None:
    """Silence every libcublasLt in a folder, by default that of this Python's packages."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib"))
    found = sorted(folder.rglob("libcublasLt.so.*"))
    for library in found:
        silence(library)
    print(f"libraries silenced: {len(found)}; this torch is for CPUs alone")


if __name__ == "__main__":
    main()
