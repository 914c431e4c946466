"""The loop of the executor: claims tasks, gives them slots, collects what ended, and stops in good order."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from client.bell import RUNG, Bell
from client.executor.child import READY, Child, Turn, cause_of, start
from client.executor.preload import Learning
from client.executor.supernode import SuperNode
from client.flower.runtime import Link, Task, report_crash, report_end

_LONGEST_PAUSE = 1.0  # seconds between two looks at children and SuperNodes
_AHEAD = 8  # tasks that fetch their message while others compute
_GRACE = 5.0  # seconds that running tasks get to finish when the executor is told to stop
_LAST_WORDS = 3.0  # seconds to tell the SuperNodes of those that did not

_STOPPED = "the executor was stopped"
_SUPERSEDED = "its message never came, and there is another task"

_STOP = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOP, signal.SIGCHLD, READY, RUNG)

_log = logging.getLogger("coterie.executor")

RunTask = Callable[[Task, Link, Turn], None]


def serve(nodes: Sequence[SuperNode], slots: int, run_task: RunTask, bell_at: Path | None = None) -> None:
    """Run tasks of `nodes`, at most `slots` at once, until SIGTERM or SIGINT. The process must have no other thread.

    SuperNodes that ring the bell are asked at once, and rarely otherwise.
    """
    # Blocked and waited for instead of handled: nothing is interrupted, and none is lost between a look and a wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    bell = Bell(bell_at) if bell_at is not None else None
    turns = deque(nodes)
    children: dict[int, Child] = {}
    learning = Learning()

    def is_full() -> bool:
        return sum(not child.lacks_message() for child in children.values()) >= slots + _AHEAD

    try:
        while True:
            learning.learn(_reap(children, nodes))
            rung = bell.rung() if bell is not None else ()
            for node in nodes:
                if node.address in rung:
                    node.has_rung()
                if is_full():
                    node.look()
                if node.is_lost():
                    _kill(_of(node, children), "its SuperNode is gone")
            # A claimed task must start at once, so a place comes first; taking turns keeps one SuperNode from the rest.
            for _ in range(len(turns)):
                _give_slots(children, slots)
                if is_full():
                    break
                node = turns[0]
                turns.rotate(-1)
                if node.due > time.monotonic():
                    continue
                if (task := node.acquire()) is not None:
                    left = {pid: child for pid, child in _of(node, children).items() if child.lacks_message()}
                    _kill(left, _SUPERSEDED)
                    pid, child = start(task, partial(run_task, task, node.link))
                    children[pid] = child
                elif any(not child.lacks_message() for child in _of(node, children).values()):
                    node.expect_later()
            pause = _LONGEST_PAUSE if is_full() else min(node.due for node in nodes) - time.monotonic()
            event = signal.sigtimedwait(_WATCHED, min(max(pause, 0.0), _LONGEST_PAUSE))
            if event is not None and event.si_signo in _STOP:
                break
    finally:
        _finish(children, nodes)


def _give_slots(children: Mapping[int, Child], slots: int) -> None:
    """Let children compute that have their message, in the order in which their tasks were claimed."""
    free = slots - sum(child.has_slot for child in children.values())
    ready = (
        child for child in children.values() if not (child.has_slot or child.killed_because) and child.has_message()
    )
    for child in islice(ready, max(free, 0)):
        child.give_slot()


def _of(node: SuperNode, children: Mapping[int, Child]) -> dict[int, Child]:
    return {pid: child for pid, child in children.items() if child.task.address == node.address}


def _reap(children: dict[int, Child], nodes: Iterable[SuperNode]) -> list[list[str]]:
    """Collect the children that ended, and return what they had to import; for one that crashed, start another that
    says so."""
    found = []
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            continue
        child = children.pop(pid)
        missed, header = child.missed(), child.last_words()
        node = next(node for node in nodes if node.address == child.task.address)
        node.expect_soon()
        cause = child.killed_because or cause_of(os.waitstatus_to_exitcode(status))
        if not cause:
            found.append(missed)
            continue
        _log.error("task %d of SuperNode %s did not finish: %s", child.task.number, child.task.address, cause)
        if not node.is_lost() and (tell := _report(child.task, node.link, header, cause)) is not None:
            number, report = start(child.task, tell)
            report.has_slot = True
            children[number] = report
    return found


def _report(task: Task, link: Link, header: bytes, cause: str) -> Callable[[Turn], None] | None:
    """Return what tells a SuperNode of a dead child; a report has no header, so that a failing one is not reported."""
    if header:
        return lambda _: report_crash(task, link, header, cause)
    if cause == _SUPERSEDED:
        return lambda _: report_end(task, link, cause)
    return None


def _kill(children: Mapping[int, Child], why: str) -> None:
    for pid, child in children.items():
        if not child.killed_because:
            child.killed_because = why
            os.kill(pid, signal.SIGKILL)


def _finish(children: dict[int, Child], nodes: Iterable[SuperNode]) -> None:
    """Let running tasks finish for a while, kill the others, and let their SuperNodes be told."""
    if children:
        _log.info("stopping; running tasks get %.0f s", _GRACE)
    _kill({pid: child for pid, child in children.items() if not child.has_slot}, _STOPPED)
    _wait(children, nodes, _GRACE)
    _kill(children, _STOPPED)
    _wait(children, nodes, _LAST_WORDS)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _wait(children: dict[int, Child], nodes: Iterable[SuperNode], seconds: float) -> None:
    """Wait for all children; a second signal to stop ends the wait."""
    end = time.monotonic() + seconds
    _reap(children, nodes)
    while children and (left := end - time.monotonic()) > 0:
        event = signal.sigtimedwait(_WATCHED, left)
        _reap(children, nodes)
        if event is not None and event.si_signo in _STOP:
            return
