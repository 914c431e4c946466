"""What a site may do wrong, for `tests.support.faults`: copied into a copy of the project, never part of Coterie.

In the folder MISBEHAVIOUR a file `limit` says up to which round sites may train: before, they wait. A file named after
a site says what its training does wrong then; it is removed first. A site that waits says so in a file `NAME.waits`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from client.identity import identify
from common import wire

Reply = Callable[[Message, Context, Any], Message]


def _changed(reply: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    """Change the first tensor of an update."""
    arrays = dict(wire.unpack_model(reply.content))
    name = next(iter(arrays))
    reply.content["model"] = wire.pack_arrays(arrays | {name: change(arrays[name])})
    return reply


def _truncated(reply: Message) -> Message:
    arrays = dict(reply.content["model"])
    name, array = next(iter(arrays.items()))
    arrays[name] = Array(array.dtype, array.shape, array.stype, array.data[: len(array.data) // 2])
    reply.content["model"] = ArrayRecord(arrays)
    return reply


def _version(reply: Message) -> Message:
    reply.content["training"]["version"] = wire.VERSION + 1
    return reply


# `oversized` is larger than round.max_message_mb = 1 in tests.support.faults.
CHANGES: dict[str, Callable[[Message], Message]] = {
    "nan": lambda reply: _changed(reply, lambda array: array * np.float32("nan")),
    "shape": lambda reply: _changed(reply, lambda array: array[:1]),
    "oversized": lambda reply: _changed(reply, lambda array: np.zeros(1_000_000, np.float32)),
    "truncated": _truncated,
    "version": _version,
}


def around(reply_of: Reply) -> Reply:
    """Wrap the ClientApp's way of answering."""

    def reply(message: Message, context: Context, answer: Any) -> Message:
        if message.metadata.message_type != "train":
            return reply_of(message, context, answer)
        folder = Path(os.environ["MISBEHAVIOUR"])
        name = identify(context.node_config, context.node_id).name
        (folder / f"{name}.waits").write_text(str(wire.unpack_task(message.content).round_number))
        while int((folder / "limit").read_text()) < wire.unpack_task(message.content).round_number:
            time.sleep(0.05)
        order = folder / name
        if not order.exists():
            return reply_of(message, context, answer)
        kind = order.read_text()
        order.unlink()
        if kind == "raise":
            raise RuntimeError("told to raise")
        if kind == "die":
            os.abort()
        if kind.startswith("sleep"):
            time.sleep(float(kind.split()[1]))
            return reply_of(message, context, answer)
        return CHANGES[kind](reply_of(message, context, answer))

    return reply
