"""A local SuperNode as the executor sees it: when to ask it for a task, and whether it is still there."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from client.flower.runtime import Link, NoAnswer, NobodyThere, Task, TaskQueue

_POLL, _IDLE_POLL = 0.25, 1.0
_RINGS = 5.0  # seconds between two questions to a SuperNode that says by itself when it has a task
_ALL_POLLS = 20  # most questions a second to all SuperNodes together: each takes some milliseconds of a core
_BUSY = 60.0  # seconds after its last task in which a SuperNode is asked at the shorter interval
_LOOK = 5.0  # seconds between two looks whether a SuperNode still exists, while it has a task or no place is free
_BACK_OFF = 10.0  # longest wait, in seconds, between two attempts to reach a SuperNode that does not answer
_LOST = 10.0  # seconds without anybody at a SuperNode's port after which its tasks are lost: it keeps them in memory

_log = logging.getLogger("coterie.executor")


@dataclass
class SuperNode:
    """One of `among` SuperNodes that one executor serves; times are those of the monotonic clock."""

    address: str
    link: Link
    among: int = 1
    due: float = 0.0
    _rings: bool = False
    _asked: float = float("-inf")
    _last_task: float = float("-inf")
    _gone_since: float | None = None
    _failures: int = 0
    _queue: TaskQueue = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._queue = TaskQueue(self.address, self.link)

    def acquire(self, *, claim: bool = True) -> Task | None:
        """Claim the oldest waiting task; None if there is none or the SuperNode does not answer.

        Without `claim` only its answer counts.
        """
        self._asked = time.monotonic()
        try:
            task = self._queue.acquire(claim=claim)
        except NoAnswer as error:
            self._missed(error)
            return None
        now = time.monotonic()
        if self._failures:
            _log.info("SuperNode %s answers again", self.address)
        self._gone_since, self._failures = None, 0
        if task is None:
            pause = _POLL if now - self._last_task < _BUSY else _IDLE_POLL
            self.due = now + max(_RINGS if self._rings else pause, self.among / _ALL_POLLS)
            return None
        self.due, self._last_task = now + _LOOK, now
        return task

    def look(self) -> None:
        """See whether it still exists, if that was not seen lately."""
        if time.monotonic() - self._asked > _LOOK:
            self.acquire(claim=False)

    def is_lost(self) -> bool:
        """Whether it has ended, so that nobody waits for the tasks that were claimed from it."""
        return self._gone_since is not None and time.monotonic() - self._gone_since > _LOST

    def has_rung(self) -> None:
        """Ask it at once: it has a task."""
        self._rings, self.due = True, time.monotonic()

    def expect_soon(self) -> None:
        """Ask it again shortly: a task of it ended, and the next message may follow at once."""
        if not self._rings:
            self.due = min(self.due, time.monotonic() + _POLL)

    def expect_later(self) -> None:
        """Leave it in peace for a while: it has a task, and serves one message at a time."""
        self.due = max(self.due, time.monotonic() + _LOOK)

    def _missed(self, error: NoAnswer) -> None:
        now = time.monotonic()
        if not self._failures:
            _log.warning("SuperNode %s does not answer, waiting for it: %s", self.address, error)
        # One that takes its time is still there, however busy the machine.
        if self._gone_since is None and isinstance(error, NobodyThere):
            self._gone_since = now
        self._failures += 1
        self.due = now + min(_BACK_OFF, _POLL * 2 ** min(self._failures, 10))
