"""The state of a run after a round, on disk: written whole or not at all, verified when it is read.

A checkpoint is one file: the arrays as safetensors, among them the rest of the state as JSON, then the SHA-256 of all
that and a closing mark. It appears under its name only when it is complete and on disk, and the one before it is
kept, so that there is a good one at every moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.disk import sync
from common.foreign import Unusable, named_faults, parse_tensors
from common.tensors import contiguous, write_tensors

_MARK = b"coterie checkpoint 3"
_DIGEST_BYTES = 32
_TRAILER = _DIGEST_BYTES + len(_MARK)
_NAME = re.compile(r"round-(\d{6})\.checkpoint")
_KEPT = 2
_CHUNK = 1 << 20
_STATE = "state"
# What stands in the place of an array. No site can be called so, and sites' names are keys of a state.
_REFERENCE = "<array>"
_log = logging.getLogger("coterie")

# Dicts with text keys, lists, scalars, None, and NumPy arrays.
State = dict[str, Any]


class InvalidCheckpoint(ValueError):
    """A file that is not a whole checkpoint; the message says why."""


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, round_number: int, state: State) -> None:
        """Write the state after a round and let go of all but the last two; an OSError leaves the old ones in place."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"round-{round_number:06d}.checkpoint"
        part = path.with_suffix(".part")
        arrays: dict[str, NDArray[Any]] = {}
        document = json.dumps(_without_arrays(state, arrays), allow_nan=False)
        arrays[_STATE] = np.frombuffer(document.encode(), np.uint8)
        try:
            write_tensors(part, arrays)
            with part.open("r+b") as file:
                digest = _digest(file)
                file.write(digest + _MARK)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            sync(self._folder)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def latest(self) -> tuple[int, State] | None:
        """Return round and state of the newest checkpoint that is whole; None: there is none."""
        for path in reversed(self._files()):
            try:
                return int(_NAME.fullmatch(path.name)[1]), read(path)  # type: ignore[index]
            except (InvalidCheckpoint, OSError) as error:
                _log.warning("%s cannot be used: %s; trying the one before", path, error)
        return None

    def rounds(self) -> list[int]:
        """The rounds that the run may go back to."""
        return [int(_NAME.fullmatch(path.name)[1]) for path in self._files()]  # type: ignore[index]

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))


def read(path: Path) -> State:
    """Read and verify one checkpoint."""
    content = path.read_bytes()
    if len(content) < _TRAILER or not content.endswith(_MARK):
        raise InvalidCheckpoint("it is incomplete or of another version")
    body, digest = memoryview(content)[:-_TRAILER], content[-_TRAILER : -len(_MARK)]
    if hashlib.sha256(body).digest() != digest:
        raise InvalidCheckpoint("its checksum is wrong")
    try:
        with named_faults():
            arrays = parse_tensors(bytes(body))
            # Not within the bounds of others' numbers: states of generators are larger.
            state = _with_arrays(json.loads(arrays.pop(_STATE).tobytes()), arrays)
    except Unusable as error:
        raise InvalidCheckpoint(f"it cannot be read: {error}") from None
    if not isinstance(state, dict):
        raise InvalidCheckpoint("it holds no state")
    return state


def _digest(file: Any) -> bytes:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.digest()


def _without_arrays(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Replace every array in a state by a reference to its place among `arrays`."""
    if isinstance(value, np.ndarray):
        key = f"array {len(arrays)}"
        arrays[key] = contiguous(value)
        return {_REFERENCE: key}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or _REFERENCE in value:
            raise TypeError(f"a state's keys are text other than {_REFERENCE!r}")
        return {key: _without_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, arrays) for item in value]
    return value


def _with_arrays(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_REFERENCE}:
            return arrays[value[_REFERENCE]]
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value
