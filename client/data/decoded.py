"""Every image decoded once, kept on disk, and shared by all processes that need it.

Decoding is also the check: what cannot be decoded is named and never used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.lock import exclusive
from client.data.samples import Samples, Undecodable
from common.config import SettingsError

# Part of the key: raise it whenever the same file would be decoded to other pixels.
_FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """Why a sample has no pixels; a temporary failure is that of a disk and not of the file."""

    reason: str
    temporary: bool


@dataclass(frozen=True, eq=False)
class Decoded:
    """All samples of a source at one resolution.

    Attributes
    ----------
    pixels : uint8[n, size, size, channels]
        Read-only and mapped from disk; rows of failed samples are black.
    failures
        Position of every sample that could not be decoded, and why.
    """

    pixels: NDArray[np.uint8]
    failures: Mapping[int, Failure]


def decode(samples: Samples, size: int, channels: int, cache: Path) -> Decoded:
    """Return all samples at size by size pixels, from `cache` if an earlier call left them there."""
    shape = (len(samples), size, size, channels)
    if len(samples) == 0:
        return Decoded(np.empty(shape, np.uint8), {})
    key = hashlib.sha256(f"{samples.digest} {size} {channels} {_FORMAT}".encode()).hexdigest()[:32]
    folder = cache / "decoded"
    path = folder / f"{key}.npy"
    if (kept := _read(path, shape)) and not _recovered(samples, kept, size, channels):
        return kept
    try:
        # Decoded patients' images are nobody else's business, so the folder is closed to other users.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(path.with_suffix(".lock")):
            # Another process may have done the work while this one waited for the lock.
            if (kept := _read(path, shape)) and not _recovered(samples, kept, size, channels):
                return kept
            _write(path, samples, shape)
    except OSError as error:
        raise SettingsError(
            f"cannot keep decoded images in {folder}: {error.strerror or error}; make room or name another folder "
            "(`cache` in the node config of a site, or in the configuration of a simulation)"
        ) from error
    fresh = _read(path, shape)
    if fresh is None:
        raise SettingsError(f"decoded images in {folder} cannot be read back: is the disk failing?")
    return fresh


def _recovered(samples: Samples, kept: Decoded, size: int, channels: int) -> bool:
    """Say whether a sample that a failing disk had hidden can be read now."""
    hidden = [position for position, failure in kept.failures.items() if failure.temporary]
    return any(not isinstance(outcome, Undecodable) for outcome in samples.attempts(hidden, size, channels))


def _read(path: Path, shape: tuple[int, ...]) -> Decoded | None:
    """Open what an earlier call wrote; None if it is missing, damaged or of another shape."""
    try:
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        entries = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        failures = {int(at): Failure(str(reason), bool(temporary)) for at, reason, temporary in entries}
    except (OSError, ValueError, TypeError, EOFError):
        return None
    fits = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape == shape
    return Decoded(pixels, failures) if fits and all(0 <= at < shape[0] for at in failures) else None


def _write(path: Path, samples: Samples, shape: tuple[int, ...]) -> None:
    """Decode into `path` and its .json, each complete or not there at all."""
    count, size, _, channels = shape
    black = bytes(size * size * channels)
    failures: list[tuple[int, str, bool]] = []
    part = path.with_suffix(".npy.part")
    # Written in order instead of through a memory map: a full disk is then an error and not a SIGBUS.
    with part.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for position, outcome in enumerate(samples.attempts(range(count), size, channels)):
            if isinstance(outcome, Undecodable):
                failures.append((position, outcome.reason, outcome.temporary))
            handle.write(black if isinstance(outcome, Undecodable) else outcome.tobytes())
    listing = path.with_suffix(".json.part")
    listing.write_text(json.dumps(failures), encoding="utf-8")
    # The pixels count only together with the list of failures, so the list goes last.
    path.with_suffix(".json").unlink(missing_ok=True)
    os.replace(part, path)
    os.replace(listing, path.with_suffix(".json"))
