"""A site that watches itself: has what it holds changed since it last said what that is?

What it said is remembered in numbers (`Description`), by the round in which it was said. The comparison is made here,
and one number leaves: how many standard deviations it has changed, if that is more than chance would explain.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np
from numpy.typing import NDArray

from client.fingerprints.description import CERTAIN, Description, change, describe
from client.memory import Memory, open_memory
from client.request import Request
from common.state import State

_log = logging.getLogger("coterie")

# Standard deviations that are no accident: one look in 30,000 goes as far by chance.
RAISED = 4.0


def remember_description(request: Request) -> None:
    """Remember what the site is about to say of itself, if the server wants it to watch itself."""
    task = request.task
    if task.described is None:
        return
    arrays = _arrays(request)
    try:
        _memory(request).remember(task.round_number, arrays, accepted=task.described, checkpoints=task.checkpoints)
    except OSError as error:
        # It will not know what it said, and be asked more often; that is no reason to stay away.
        _log.warning("this site cannot remember what it says of itself: %s", error)


def changed(request: Request) -> float:
    """How far the site is from what it said in the round that the task names; 0: no farther than by chance."""
    described = request.task.described
    if described is None:
        return 0.0
    try:
        before = _memory(request).recall(described)
        if before is not None and np.array_equal(before.get("state", ()), _state(request)):
            return 0.0
        now = None if before is None else _now(request)
    except Exception:
        # It is asked with every update, and one that is trained is worth sending all the same.
        _log.exception("this site cannot see whether it has changed")
        return 0.0
    try:
        if before is not None and now is not None:
            deviation = change(_description(before), now)
            return deviation if deviation >= RAISED else 0.0
    except (KeyError, ValueError, IndexError) as error:
        _log.warning("what this site remembers of itself cannot be used: %s", error)
    # Who no longer knows what it said asks to be asked again.
    _log.warning("this site does not remember what it said of itself in round %d", described)
    return CERTAIN


def _memory(request: Request) -> Memory:
    return open_memory(request.identity, request.task, "description")


def _now(request: Request) -> Description:
    return describe(request.embedded(), request.site.train_labels)


def _arrays(request: Request) -> State:
    now = _now(request)
    return {
        "classes": now.classes, "counts": now.counts, "means": now.means, "scatter": now.scatter,
        "spread": np.array([now.spread]), "state": _state(request),
    }  # fmt: skip


def _description(arrays: State) -> Description:
    return Description(
        arrays["classes"], arrays["counts"], arrays["means"], arrays["scatter"], float(arrays["spread"][0])
    )


def _state(request: Request) -> NDArray[np.uint8]:
    """What stays the same as long as the training samples do: then nothing needs to be embedded, or compared."""
    site = request.site
    digest = hashlib.sha256(site.samples.digest.encode())
    digest.update(np.ascontiguousarray(site.train).tobytes())
    digest.update(np.ascontiguousarray(site.train_labels).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)
