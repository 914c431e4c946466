"""Messages and runs as Flower's own processes make them, for Grids of ours; and the types that Grids speak of."""

from __future__ import annotations

import time
from uuid import uuid4

from flwr.app import Error, Message, MessageType, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["NodeInfo", "Run", "app_raised", "empty_run", "node_unavailable", "set_message_id", "speak_as"]


def speak_as(*, run: int, node: int, task: int) -> None:
    """Say who speaks in this process: Flower's `Message` asks, and its own engines tell each process."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, task


def set_message_id(message: Message, message_id: str = "") -> str:
    """Name a message, as Flower does when it is sent; without a name of its own it gets a new one. Return the name."""
    name = message_id or str(uuid4())
    message.metadata.__dict__["_message_id"] = name
    return name


def empty_run(run: int) -> Run:
    """Return a run of which only the number is known."""
    return Run.create_empty(run_id=run)


def app_raised(request: Message, reason: str) -> Message:
    """Return what Flower answers for a ClientApp that raised."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=request)


def node_unavailable(message_id: str, node: int, reason: str) -> Message:
    """Return what Flower answers for a node that went offline with this message."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=node,
        dst_node_id=0,
        reply_to_message_id=message_id,
        group_id="",
        created_at=time.time(),
        ttl=0.0,
        message_type=MessageType.QUERY,
    )
    return make_message(metadata=metadata, error=Error(ErrorCode.NODE_UNAVAILABLE, reason))
