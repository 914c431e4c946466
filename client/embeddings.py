"""Embeddings of a site's samples, kept on disk: an image is embedded once."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache as once
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from client.data.alterations import AlteredSamples
from client.encoder import Encoder
from common.disk import gone_if_it_fails
from common.foreign import read_array
from common.lock import exclusive

_FORMAT = 1
_ITEM = np.dtype(np.float32).itemsize
_log = logging.getLogger(__name__)


class Samples(Protocol):
    """Labelled images that can be decoded by row."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class index of each of the n samples, int64[n]."""

    @property
    def digest(self) -> str:
        """Changes whenever a sample changes."""

    def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
        """Decode rows as uint8[len(index), size, size, channels]."""


@runtime_checkable
class PlacedSamples(Samples, Protocol):
    """Samples that know where they were read from and what tells an unchanged one."""

    @property
    def place(self) -> Path | None:
        """The site's own folder or file, which may change; None for a data set that simulated sites share."""

    def stamp(self, position: int) -> str:
        """Return what stays the same as long as the sample's pixels do, or nothing if that is not known."""


def embeddings(
    encoder: Encoder, samples: Samples, index: NDArray[np.int64], cache: Path, batch_size: int
) -> NDArray[np.float32]:
    """Return the embeddings of the samples in `index`, float32[len(index), d], in that order.

    Rows found under `cache` are not computed again, whoever computed them: simulated sites share one file per encoder
    and data set, and may run in several processes. Of a site's own folder or file only the latest state is kept, with
    the rows of what has not changed since the one before. Without a usable folder everything is computed and nothing is
    kept.
    """
    if isinstance(samples, AlteredSamples):
        # By what was done to an image and not by who holds it when: otherwise every site would leave a file per round.
        result = np.zeros((len(index), encoder.dimension), np.float32)
        for positions, alike in samples.alike(index):
            result[positions] = _stored(encoder, alike, index[positions], cache, batch_size)
        return result
    return _stored(encoder, samples, index, cache, batch_size)


def _stored(
    encoder: Encoder, samples: Samples, index: NDArray[np.int64], cache: Path, batch_size: int
) -> NDArray[np.float32]:
    result = np.zeros((len(index), encoder.dimension), np.float32)
    try:
        store = _Store(cache / "embeddings", encoder, samples)
    except OSError as error:
        _warn(cache, error.strerror)
        for positions, rows in _embedded(encoder, samples, index, np.arange(len(index)), batch_size):
            result[positions] = rows
        return result
    with store, ExitStack() as stack:
        missing = np.flatnonzero(~store.read(index, result))
        if not len(missing):
            return result
        writer = stack.enter_context(ThreadPoolExecutor(1, "cache"))
        written: list[Future[None]] = []
        for positions, rows in _embedded(encoder, samples, index, missing, batch_size):
            result[positions] = rows
            # Waiting for the disk takes as long as embedding a small batch, so it is left to another thread.
            written.append(writer.submit(store.write, index[positions], rows))
        failed = next((error for error in (future.exception() for future in written) if error), None)
    if isinstance(failed, OSError):
        _warn(cache, failed.strerror)
    elif failed:
        raise failed
    return result


def _embedded(
    encoder: Encoder, samples: Samples, index: NDArray[np.int64], positions: NDArray[np.intp], batch_size: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Embed the samples at some positions of the index in batches, decoding one batch ahead."""
    # Whole blocks, because the encoder would fill up any other batch.
    step = -(-batch_size // encoder.block) * encoder.block
    batches = [positions[start : start + step] for start in range(0, len(positions), step)]
    if not batches:
        return
    with ThreadPoolExecutor(1, "decode") as decoder:

        def decode(batch: NDArray[np.intp]) -> Future[NDArray[np.uint8]]:
            return decoder.submit(samples.images, index[batch], encoder.size, 3)

        ahead = decode(batches[0])
        for batch, following in zip_longest(batches, batches[1:]):
            images = ahead.result()
            if following is not None:
                ahead = decode(following)
            yield batch, encoder.embed(images)


def _key(encoder: Encoder, identity: str) -> str:
    return hashlib.sha256("\x1f".join((encoder.identity, identity, str(_FORMAT))).encode()).hexdigest()


@once
def _warn(cache: Path, reason: str | None) -> None:
    """Once per folder and reason, not once per site."""
    _log.warning("embeddings are not cached under %s: %s", cache, reason)


class _Store:
    """Two files: `<key>.npy`, float32[n, d], and `<key>.mask`, one byte per row that is 1 once the row is on disk.

    Of a place that may change, the key has two parts, place and state, and `<key>.stamps` says line by line whose row
    it is: the next state takes over the rows of unchanged samples, and then this one is removed. Whoever has it open
    may go on.

    Writes go through the file descriptor, not through a memory map: the file is sparse, and on a full disk a map
    kills the process where a descriptor raises OSError.
    """

    def __init__(self, folder: Path, encoder: Encoder, samples: Samples) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = family = _key(encoder, samples.digest)
        stamps: list[str] | None = None
        if isinstance(samples, PlacedSamples) and samples.place is not None:
            family = _key(encoder, str(samples.place))
            key = f"{family}.{key}"
            stamps = [samples.stamp(row) for row in range(len(samples.labels))]
        self._rows, self._mask = folder / f"{key}.npy", folder / f"{key}.mask"
        self._shape = len(samples.labels), encoder.dimension
        self._header = _header(self._shape)
        # Both files are opened under the lock, so nobody holds the rows of one pair and the mask of another. The lock
        # is that of the place: whoever waited for the lock of a removed state would not be alone.
        with exclusive(folder / f"{family}.lock"):
            if not _valid(self._rows, self._shape):
                if stamps is None:
                    self._create({})
                else:
                    self._succeed(family, stamps)
            self._rows_file = os.open(self._rows, os.O_RDWR)
            try:
                self._mask_file = os.open(self._mask, os.O_RDWR)
            except OSError:
                os.close(self._rows_file)
                raise

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._rows_file)
        os.close(self._mask_file)

    def read(self, index: NDArray[np.int64], into: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Copy the rows of `index` that are there into `into`; return which, bool[len(index)]."""
        mask = np.frombuffer(os.pread(self._mask_file, self._shape[0], 0), np.uint8)
        there: NDArray[np.bool_] = mask[index] == 1
        length = self._shape[1] * _ITEM
        for position in np.flatnonzero(there):
            found = os.preadv(self._rows_file, [into[position]], self._position(index[position]))
            there[position] = found == length
        # Rows that are not there are zeros, or will be written over.
        return there & np.isfinite(into).all(axis=1)

    def write(self, index: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Store rows, and say so only once they are on disk."""
        for row, values in zip(index, rows, strict=True):
            _write(self._rows_file, values.tobytes(), self._position(row))
        os.fdatasync(self._rows_file)
        for row in index:
            _write(self._mask_file, b"\x01", int(row))

    def _position(self, row: np.int64) -> int:
        return len(self._header) + int(row) * self._shape[1] * _ITEM

    def _succeed(self, family: str, stamps: list[str]) -> None:
        """Create the store of a new state, and remove every other one of its place and what a killed process left."""
        known: dict[str, NDArray[np.float32]] = {}
        for earlier in self._rows.parent.glob(f"{family}.*.npy"):
            known |= _kept(earlier, self._shape[1])
        self._rows.with_suffix(".stamps").write_text("\n".join(stamps), encoding="ascii")
        self._create({row: known[stamp] for row, stamp in enumerate(stamps) if stamp in known})
        for file in self._rows.parent.glob(f"{family}.*"):
            if file.name != f"{family}.lock" and not file.name.startswith(f"{self._rows.stem}."):
                file.unlink(missing_ok=True)

    def _create(self, known: Mapping[int, NDArray[np.float32]]) -> None:
        """Make both files anew, with the rows that are known, beside the old ones and move them into place."""
        new_mask, new_rows = (path.with_suffix(path.suffix + ".new") for path in (self._mask, self._rows))
        with gone_if_it_fails(new_mask, new_rows):
            self._write_new(new_mask, new_rows, known)
        # Without a mask rows count for nothing, so that at no moment a mask stands beside rows it does not speak of.
        self._mask.unlink(missing_ok=True)
        os.replace(new_rows, self._rows)
        os.replace(new_mask, self._mask)

    def _write_new(self, new_mask: Path, new_rows: Path, known: Mapping[int, NDArray[np.float32]]) -> None:
        new_mask.write_bytes(bytes(int(row in known) for row in range(self._shape[0])))
        with new_rows.open("wb") as rows:
            rows.write(self._header)
            rows.truncate(self._position(np.int64(self._shape[0])))
            for row, values in known.items():
                rows.seek(self._position(np.int64(row)))
                rows.write(values.tobytes())
            if known:
                rows.flush()
                os.fdatasync(rows.fileno())


def _valid(rows: Path, shape: tuple[int, int]) -> bool:
    """Whether rows and mask are there with the header and the sizes that this code gives them."""
    header = _header(shape)
    try:
        with rows.open("rb") as file:
            found = file.read(len(header))
        sizes = rows.stat().st_size, rows.with_suffix(".mask").stat().st_size
    except FileNotFoundError:
        return False
    return found == header and sizes == (len(header) + shape[0] * shape[1] * _ITEM, shape[0])


def _kept(rows: Path, dimension: int) -> dict[str, NDArray[np.float32]]:
    """Return the rows that an earlier state of a place has, by the stamps of their samples."""
    try:
        stamps = rows.with_suffix(".stamps").read_text(encoding="ascii").split("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    if not _valid(rows, (len(stamps), dimension)):
        return {}
    table = read_array(rows, mapped=True)
    marks = rows.with_suffix(".mask").read_bytes()
    return {
        stamp: table[row]
        for row, stamp in enumerate(stamps)
        if stamp and marks[row] == 1 and np.isfinite(table[row]).all()
    }


def _header(shape: tuple[int, int]) -> bytes:
    """What a .npy file of float32 rows begins with."""
    header = BytesIO()
    write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _write(file: int, content: bytes, position: int) -> None:
    while content:
        done = os.pwrite(file, content, position)
        content, position = content[done:], position + done
