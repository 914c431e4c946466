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

from client.data.samples import ImageSamples, Undecodable
from common.config import SettingsError
from common.disk import gone_if_it_fails
from common.foreign import read_array, read_json
from common.lock import exclusive

# Part of the key: raise it whenever the same file would be decoded to other pixels.
_FORMAT = 2


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


def decode(samples: ImageSamples, size: int, channels: int, cache: Path) -> Decoded:
    """Return all samples at size by size pixels, from `cache` if an earlier call left them there.

    Of a place that may change only the latest state is kept: images that an earlier state had already are copied and
    not decoded again, and then that state is removed. Whoever has it open may go on reading.
    """
    shape = (len(samples), size, size, channels)
    if len(samples) == 0:
        return Decoded(np.empty(shape, np.uint8), {})
    folder = cache / "decoded"
    state = _key(samples.digest, size, channels)
    place = samples.place
    # The lock is that of the place, which stays, and not that of a state: who waited for the lock of a removed state
    # would not be alone.
    family = state if place is None else _key(str(place), size, channels)
    path = folder / (f"{state}.npy" if place is None else f"{family}.{state}.npy")
    if (kept := _read(path, shape)) and not _recovered(samples, kept, size, channels):
        return kept
    try:
        # Decoded patients' images are nobody else's business, so the folder is closed to other users.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(folder / f"{family}.lock"):
            # Another process may have done the work while this one waited for the lock.
            if (kept := _read(path, shape)) and not _recovered(samples, kept, size, channels):
                return kept
            with gone_if_it_fails(*_parts(path)):
                _write(path, samples, shape, {} if place is None else _known(folder, family, shape))
            if place is not None:
                _supersede(path, samples, folder, family)
            # Still under the lock: another process may see another state of the source and remove this one.
            fresh = _read(path, shape)
    except OSError as error:
        raise SettingsError(
            f"cannot keep decoded images in {folder}: {error.strerror or error}; make room or name another folder "
            "(`cache` in the node config of a site, or in the configuration of a simulation)"
        ) from error
    if fresh is None:
        raise SettingsError(f"decoded images in {folder} cannot be read back: is the disk failing?")
    return fresh


def _key(identity: str, size: int, channels: int) -> str:
    return hashlib.sha256(f"{identity} {size} {channels} {_FORMAT}".encode()).hexdigest()[:32]


def _known(folder: Path, family: str, shape: tuple[int, ...]) -> dict[str, NDArray[np.uint8]]:
    """Return the pixels of every image that earlier states of a source had, by its stamp."""
    known: dict[str, NDArray[np.uint8]] = {}
    for path in folder.glob(f"{family}.*.npy"):
        try:
            stamps = path.with_suffix(".stamps").read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        if earlier := _read(path, (len(stamps), *shape[1:])):
            known |= {
                stamp: earlier.pixels[row] for row, stamp in enumerate(stamps) if stamp and row not in earlier.failures
            }
    return known


def _supersede(path: Path, samples: ImageSamples, folder: Path, family: str) -> None:
    """Note whose pixels these are, and remove every other state of the source and what a killed process left behind."""
    stamps = [samples.stamp(position) for position in range(len(samples))]
    path.with_suffix(".stamps").write_text("\n".join(stamps), encoding="ascii")
    for file in folder.glob(f"{family}.*"):
        if file.name != f"{family}.lock" and not file.name.startswith(f"{path.stem}."):
            file.unlink(missing_ok=True)


def _recovered(samples: ImageSamples, kept: Decoded, size: int, channels: int) -> bool:
    """Say whether a sample that a failing disk had hidden can be read now."""
    hidden = [position for position, failure in kept.failures.items() if failure.temporary]
    return any(not isinstance(outcome, Undecodable) for outcome in samples.attempts(hidden, size, channels))


def _read(path: Path, shape: tuple[int, ...]) -> Decoded | None:
    """Open what an earlier call wrote; None if it is missing, damaged or of another shape."""
    try:
        pixels = read_array(path, mapped=True)
        entries = read_json(path.with_suffix(".json"))
        failures = {int(at): Failure(str(reason), bool(temporary)) for at, reason, temporary in entries}
    except (OSError, ValueError, TypeError, EOFError):
        return None
    fits = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape == shape
    return Decoded(pixels, failures) if fits and all(0 <= at < shape[0] for at in failures) else None


def _parts(path: Path) -> tuple[Path, Path]:
    """What is being written: pixels, and the list of failures."""
    return path.with_suffix(".npy.part"), path.with_suffix(".json.part")


def _write(path: Path, samples: ImageSamples, shape: tuple[int, ...], known: Mapping[str, NDArray[np.uint8]]) -> None:
    """Decode what is not `known` by its stamp into `path` and its .json, each complete or not there at all."""
    count, size, _, channels = shape
    black = bytes(size * size * channels)
    failures: list[tuple[int, str, bool]] = []
    stamps = [samples.stamp(position) for position in range(count)]
    outcomes = samples.attempts([row for row, stamp in enumerate(stamps) if stamp not in known], size, channels)
    part, listing = _parts(path)
    # Written in order instead of through a memory map: a full disk is then an error and not a SIGBUS.
    with part.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for position, stamp in enumerate(stamps):
            outcome = known[stamp] if stamp in known else next(outcomes)
            if isinstance(outcome, Undecodable):
                failures.append((position, outcome.reason, outcome.temporary))
            handle.write(black if isinstance(outcome, Undecodable) else outcome.tobytes())
    listing.write_text(json.dumps(failures), encoding="utf-8")
    # The pixels count only together with the list of failures, so the list goes last.
    path.with_suffix(".json").unlink(missing_ok=True)
    os.replace(part, path)
    os.replace(listing, path.with_suffix(".json"))
