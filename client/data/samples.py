"""What every source of data looks like to the rest of the site: labelled rows, or images that are decoded on demand."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from client.data.opening import Part, opened
from client.data.pixels import square

UNSPECIFIED, TRAIN, TEST = -1, 0, 1

_BATCH = 128


@dataclass(frozen=True)
class Fault:
    """Something the site has but cannot use: its name within the data, and why."""

    name: str
    reason: str


def in_one_line(faults: Sequence[Fault], most: int = 3) -> str:
    """What is wrong with samples, so that a table of many columns does not bury everything else."""
    shown = "; ".join(f"{fault.name}: {fault.reason}" for fault in faults[:most])
    more = len(faults) - most
    return shown + (f"; and {more} more (`coterie site check` names them)" if more > 0 else "")


class Undecodable(ValueError):
    """An image that cannot be decoded; `temporary` when it was the disk that failed and not the file."""

    def __init__(self, name: str, reason: str, *, temporary: bool = False) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason, self.temporary = name, reason, temporary


@dataclass(frozen=True, eq=False)
class Samples(ABC):
    """Labelled samples of one source.

    Attributes
    ----------
    labels : int64[n]
        Indices into the agreed class list.
    groups : str[n] or None
        What must stay together, such as the patient.
    splits : int8[n]
        The source's own wish: -1 unspecified, 0 training, 1 test.
    digest
        Identity of the samples and their order, for caches.
    faults
        What was left out already when the source was listed.
    sites : str[n] or None
        Whose each sample is, where one source holds the data of several sites for a simulation.
    notes
        What the operator of the site should know of them; it stays there.
    place
        The site's own folder or file that was read: it may change, and caches keep its latest state alone. None for a
        data set that simulated sites share.
    """

    labels: NDArray[np.int64]
    groups: NDArray[np.str_] | None
    splits: NDArray[np.int8]
    digest: str
    faults: tuple[Fault, ...]
    sites: NDArray[np.str_] | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    place: Path | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, position: int) -> str:
        """Return what the operator knows the sample by."""

    def unit(self, position: int) -> str:
        """Return what the sample is split with: its group or itself, the same whatever else the source holds."""
        return self.name(position) if self.groups is None else f"group {self.groups[position]}"


@dataclass(frozen=True, eq=False)
class TableSamples(Samples):
    """Rows of a table, scaled by the agreed schema.

    Attributes
    ----------
    rows : float32[n, m]
    lines : int64[n]
        Where the file had each row.
    ids
        What the file itself calls each row; empty: nothing.
    """

    rows: NDArray[np.float32]
    lines: NDArray[np.int64]
    ids: tuple[str, ...] = field(default=(), kw_only=True)

    def name(self, position: int) -> str:
        if self.ids:
            return self.ids[position]
        return f"line {self.lines[position]}"

    def unit(self, position: int) -> str:
        # Not by the line: a row put in front would move all others.
        if self.groups is not None:
            return super().unit(position)
        return hashlib.sha256(self.rows[position].tobytes()).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class ImageSamples(Samples):
    """Labelled images of one source."""

    @abstractmethod
    def original(self, position: int) -> Image.Image:
        """Return the sample at its own resolution, in mode L or RGB."""

    def stamp(self, position: int) -> str:
        """Return what stays the same as long as the sample's pixels do, or nothing if that is not known."""
        return ""

    def image(self, position: int, size: int, channels: int) -> NDArray[np.uint8]:
        """Decode one sample to uint8[size, size, channels], or raise `Undecodable`."""
        try:
            return square(self.original(position), size, channels)
        except MemoryError:
            raise  # of this machine at this moment, not of the file
        except Exception as error:
            # Pillow's decoders fail on damaged files with nearly any exception, so none can be listed here. Those of
            # the operating system carry a number, those of a decoder do not.
            temporary = isinstance(error, OSError) and error.errno is not None
            raise Undecodable(self.name(position), str(error) or type(error).__name__, temporary=temporary) from error

    def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
        """Decode from the originals: uint8[len(index), size, size, channels]."""
        pixels = np.empty((len(index), size, size, channels), np.uint8)
        for row, outcome in enumerate(self.attempts(index.tolist(), size, channels)):
            if isinstance(outcome, Undecodable):
                raise outcome
            pixels[row] = outcome
        return pixels

    def attempts(self, positions: Sequence[int], size: int, channels: int) -> Iterator[NDArray[np.uint8] | Undecodable]:
        """Yield for each position, in order, its pixels or why there are none. Pillow decodes in parallel threads."""

        def attempt(position: int) -> NDArray[np.uint8] | Undecodable:
            try:
                return self.image(position, size, channels)
            except Undecodable as failure:
                return failure

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            # In batches, so that decoders that are faster than the reader of this iterator do not fill the memory.
            for start in range(0, len(positions), _BATCH):
                yield from pool.map(attempt, positions[start : start + _BATCH])


@dataclass(frozen=True, eq=False)
class FileSamples(ImageSamples):
    """Image files.

    Attributes
    ----------
    paths, names
        `names[i]` is how the source calls `paths[i]`.
    stamps
        `stamps[i]` changes whenever that file does.
    loners
        Whether a sample is a group of its own only because the source names none.
    parts
        What of its file each sample is.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    stamps: tuple[str, ...]
    loners: tuple[bool, ...]
    parts: tuple[Part, ...]

    def name(self, position: int) -> str:
        return self.names[position]

    def stamp(self, position: int) -> str:
        return self.stamps[position]

    def unit(self, position: int) -> str:
        return self.name(position) if self.loners[position] else super().unit(position)

    def original(self, position: int) -> Image.Image:
        return opened(self.paths[position], self.parts[position])


@dataclass(frozen=True, eq=False)
class ArraySamples(ImageSamples):
    """Images in memory.

    Attributes
    ----------
    pixels : uint8[n, h, w, 1 or 3]
    rows : int64[n]
        Where the source had each sample.
    marks
        A hash of each sample's values as the source has them, before they were scaled together with all others; empty
        for a source that does not change.
    """

    pixels: NDArray[np.uint8]
    rows: NDArray[np.int64]
    marks: tuple[str, ...]

    def name(self, position: int) -> str:
        return f"sample {self.rows[position]}"

    def stamp(self, position: int) -> str:
        pixels = self.pixels[position]
        return hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:32]

    def unit(self, position: int) -> str:
        # Not by the name, which is a row number: a row put in front would rename all others.
        return self.marks[position] if self.groups is None and self.marks else super().unit(position)

    def original(self, position: int) -> Image.Image:
        pixels = self.pixels[position]
        return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
