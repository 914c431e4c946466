"""Requests that wait at the SuperLink until there is something for them, in the place of asking again and again.

A question to a site and its answer are each looked for by somebody who does not know when it comes. Looks that are
frequent enough to be prompt are more work than all else: those of twenty sites keep a SuperLink busy. So a look is held
until it has found something, or for a while; then it costs as little as a rare one and finds as much as a frequent one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Each is a thread of the SuperLink. Flower has 1000 for its sites; who finds no place is answered at once, and asks
# again after a pause.
MOST = 800
_LOOK = 2.0  # seconds between two looks at whether anybody still waits


class Arrivals:
    """Wakes whoever waits for something, by its name; of several who wait for the same the last one counts."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}

    def tell(self, name: str) -> None:
        """Say that something has arrived."""
        with self._lock:
            bell = self._waiting.get(name)
        if bell is not None:
            bell.set()

    def wait(
        self, name: str, seconds: float, there: Callable[[], bool], heard: Callable[[], bool] = lambda: True
    ) -> bool:
        """Wait until it is `there`, for so many seconds at most and while somebody wants to know; return whether it is.

        It is looked for first, whenever it is told of, and last.
        """
        bell = threading.Event()
        with self._lock:
            crowded = len(self._waiting) >= self._most and name not in self._waiting
            earlier = self._waiting.get(name)
            if not crowded:
                self._waiting[name] = bell
        if earlier is not None:
            earlier.set()
        end = time.monotonic() + (0.0 if crowded else seconds)
        try:
            found = there()
            while not found:
                left = end - time.monotonic()
                if left <= 0 or not self._counts(name, bell) or not heard():
                    return False
                told = bell.wait(min(left, _LOOK))
                bell.clear()
                # A look is a question to the database.
                found = (told or time.monotonic() >= end) and there()
            return crowded or self._counts(name, bell)
        finally:
            with self._lock:
                if self._waiting.get(name) is bell:
                    del self._waiting[name]

    def _counts(self, name: str, bell: threading.Event) -> bool:
        with self._lock:
            return self._waiting.get(name) is bell
