"""An update in the run's precision: what rounding it leaves unsaid is remembered, and said in the next round."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from client.memory import Memory, forget_old_runs, open_memory
from client.methods import Visit
from client.request import Request
from common import wire
from common.state import State

_log = logging.getLogger("coterie")


class Shortening:
    """What becomes of one update.

    Parameters
    ----------
    request, visit
        That it is the answer to.
    """

    def __init__(self, request: Request, visit: Visit) -> None:
        self._request, self._before = request, visit.received
        self._precision = request.settings.wire.precision

    @property
    def has_forgotten(self) -> bool:
        """Whether the site should know what it has not said, and does not."""
        return self._precision != wire.FULL and self._request.task.accepted > 0 and not self._unsaid

    def of(self, state: State) -> State:
        """What leaves of a state: in full precision the state as it is.

        What it does not say is on disk before it goes out, as everything is that a site remembers.
        """
        if self._precision == wire.FULL:
            return state
        task = self._request.task
        if not self._unsaid:
            forget_old_runs(self._request.identity)
        sent, left = wire.shorten(state, self._before, self._unsaid, self._precision)
        self._memory.remember(task.round_number, left, accepted=task.accepted, checkpoints=task.checkpoints)
        return sent

    @property
    def _memory(self) -> Memory:
        return open_memory(self._request.identity, self._request.task, "unsaid")

    @cached_property
    def _unsaid(self) -> State:
        known = self._memory.recall(self._request.task.accepted) or {}
        if any(name not in self._before or not _alike(array, self._before[name]) for name, array in known.items()):
            _log.warning("what this site has not said yet does not fit the model: it begins anew")
            return {}
        return known


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def shortening(request: Request, visit: Visit) -> Shortening:
    """Return what becomes of an update; what would keep the site from it is found before anything is trained."""
    if request.task.terms is not None and request.settings.wire.precision != wire.FULL:
        raise wire.WireError("a secure sum is of numbers in one unit: it goes with wire.precision = 'float32' alone")
    return Shortening(request, visit)
