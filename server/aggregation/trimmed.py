"""Means that leave out the extremes of every coordinate: trimmed mean and median.

They need all updates of a round at once. These wait in a file without a name, which the system takes back whatever
happens, and are read again column by column, so that memory does not grow with the number of sites (unless the folder
for temporary files is itself in memory: TMPDIR names another).
"""

from __future__ import annotations

import math
import tempfile
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from common.fixed_point import Limits
from server.aggregation.accumulator import Arrays, RejectedUpdate
from server.aggregation.screening import Screen

# Numbers handled at once, over all updates.
BLOCK = 1 << 20


class TrimmedMean:
    """The mean of every coordinate without its k smallest and k largest values (Yin et al., ICML 2018).

    Every update counts once: what a site says of its samples is not believed. Coordinates are sorted before they are
    added, so the order of arrival leaves no trace.

    Parameters
    ----------
    reference
        The model that the group's sites were sent.
    trim
        Share of the updates that is left out at either end; 1/2 is the median. Of two updates none can be left out.
    """

    def __init__(self, reference: Arrays, trim: float) -> None:
        if not 0 <= trim <= 0.5:
            raise ValueError(f"trim = {trim} must be between 0 and 1/2")
        self._screen = Screen(reference)
        self._trim = trim
        self._file: IO[bytes] | None = None
        self._count = 0
        self._samples = 0
        self._closed = False

    @classmethod
    def bytes_needed(cls, reference: Arrays) -> int:
        """One block of numbers and its sorted copy, however many updates there are, and the mean itself."""
        return 2 * BLOCK * 8 + sum(array.nbytes for array in reference.values())

    @property
    def count(self) -> int:
        """Updates added so far."""
        return self._count

    @property
    def samples(self) -> int:
        """Samples of the updates added so far."""
        return self._samples

    @property
    def left_out(self) -> int:
        """How many values are left out at either end, k: at least one of three or more, or it guards nothing."""
        most = (self._count - 1) // 2
        if not self._trim:
            return 0
        # 0.29 × 100 is a little less than 29 to a computer.
        return min(most, max(1, math.floor(self._trim * self._count + 1e-9)))

    def add(self, state: Arrays, samples: int) -> None:
        """Add one update; one that fails the screening raises and changes nothing."""
        if self._closed:
            raise RuntimeError("this mean is closed")
        self._screen.check(state, samples)
        if self._file is None:
            # The object outlives this call: `result` closes it.
            self._file = tempfile.TemporaryFile(prefix="coterie-")  # noqa: SIM115
        start = self._file.tell()
        try:
            for name in self._screen.limits:
                self._file.write(np.ascontiguousarray(state[name]).reshape(-1).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            with suppress(OSError):
                self._file.seek(start)
                self._file.truncate()
            folder = tempfile.gettempdir()
            raise RejectedUpdate(f"the coordinator has no room for it in {folder} ({error}): make some") from None
        self._count += 1
        self._samples += samples

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the mean, with the reference's shapes and dtypes, and close; integers are rounded."""
        if self._file is None:
            raise RuntimeError("there are no updates to average" if not self._closed else "this mean is closed")
        file, self._file, self._closed = self._file, None, True
        with file:
            record = sum(_bytes(limits) for limits in self._screen.limits.values())
            # A model of no numbers cannot be mapped.
            rows = np.memmap(file, np.uint8, "r", shape=(self._count, record)) if record else None
            mean: dict[str, NDArray[Any]] = {}
            start = 0
            for name, limits in self._screen.limits.items():
                flat = np.empty(_bytes(limits) // limits.dtype.itemsize, limits.dtype)
                if rows is not None and flat.size:
                    self._fill(flat, rows[:, start : start + flat.nbytes])
                mean[name] = flat.reshape(limits.shape)
                start += flat.nbytes
        return mean

    def _fill(self, mean: NDArray[Any], rows: NDArray[np.uint8]) -> None:
        width, k, size = max(1, BLOCK // self._count), self.left_out, mean.dtype.itemsize
        for first in range(0, mean.size, width):
            part = mean[first : first + width]
            columns = rows[:, first * size : (first + part.size) * size].copy().view(mean.dtype).astype(np.float64)
            columns.sort(axis=0)
            # + 0: of two zeros of different sign either may have been kept.
            middle = columns[k : self._count - k].mean(axis=0) + 0.0
            part[...] = np.rint(middle) if np.issubdtype(mean.dtype, np.integer) else middle


def _bytes(limits: Limits) -> int:
    return int(np.prod(limits.shape, dtype=np.int64)) * limits.dtype.itemsize
