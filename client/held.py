"""What is computed once, because it is read in every round and stays as it is: embeddings, and what is made of them.

Memory is the limit. What does not fit is computed again, with the same bits.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")


class Held:
    """Arrays by what they were made from, as far as they fit into `most` bytes.

    Sites come in the same order in every round. If there are more of them than fit, whoever let go of the oldest array
    would let go of each one just before it is asked for again; so what goes is drawn by lot.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._rows: dict[Hashable, NDArray[np.float32]] = {}
        self._keys: list[Hashable] = []
        self._lots = random.Random(0)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: Hashable, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return what the key stands for, made if it is not there; nobody writes into it."""
        if key in self._rows:
            return self._rows[key]
        rows = make()
        rows.flags.writeable = False
        while self._keys and self._bytes + rows.nbytes > self._most:
            place = self._lots.randrange(len(self._keys))
            self._keys[place], self._keys[-1] = self._keys[-1], self._keys[place]
            self._bytes -= self._rows.pop(self._keys.pop()).nbytes
        self._rows[key] = rows
        self._keys.append(key)
        self._bytes += rows.nbytes
        return rows


class OfArrays(Generic[V]):
    """The last value computed from each of some arrays, as long as somebody else has the array.

    An array that can be written into may be another one the next time: nothing is remembered of it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[NDArray[Any]], Hashable, V]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, array: NDArray[Any], key: Hashable, make: Callable[[], V]) -> V:
        """Return what `make` computes from the array; `key` is what else it depends on."""
        if array.flags.writeable:
            return make()
        place = id(array)
        known = self._known.get(place)
        if known is not None and known[0]() is array and known[1] == key:
            return known[2]
        value = make()
        self._known[place] = weakref.ref(array, lambda _: self._known.pop(place, None)), key, value
        return value
