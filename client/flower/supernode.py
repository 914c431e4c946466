"""Flower's SuperNode in this process: prompt, and it leaves bundles closed. Imports Flower only when it is called."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common import riding

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree


def leave_bundles_closed() -> None:
    """Take no run config out of a bundle: a site's app gets its settings with every message."""
    from flwr.supernode import start_client_internal

    start_client_internal.__dict__["get_fused_config_from_fab"] = lambda fab, run: {}


@dataclass
class Pace:
    """When the SuperNode goes on: Flower's pauses end as soon as there is something to do.

    It sleeps 3 s after a look that found no question. A look that the SuperLink held until there was something counts
    as a part of that pause: with a SuperLink that does, there is none, and with another it is as long as before.
    """

    held: float = 0.0
    _something: threading.Event = field(default_factory=threading.Event)

    def tell(self) -> None:
        """Say that a task has told something."""
        self._something.set()

    def sleep(self, seconds: float) -> None:
        """Stand in for `time.sleep`."""
        self._something.wait(max(seconds - self.held, 0.0))
        self._something.clear()


def follow_work(ring: Callable[[], None]) -> None:
    """Let the SuperNode to come wait for what happens, and not for the end of pauses; `ring` tells of each question."""
    from flwr.client.grpc_rere_client import connection
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.nodestate import nodestate_factory

    pace, look = Pace(), flower._pull_and_store_message

    def look_and_ring(*, receive: Any, pull_object: Any, **arguments: Any) -> int | None:
        begun, pace.held = time.monotonic(), 0.0
        receive, pull_object = with_riders(receive, pull_object)
        run: int | None = look(receive=receive, pull_object=pull_object, **arguments)
        if run is None:
            pace.held = time.monotonic() - begun
        else:
            ring()
        return run

    push = flower._push_messages

    def push_with_riders(*, send: Any, object_store: Any, **arguments: Any) -> None:
        push(send=seated(send, object_store), object_store=object_store, **arguments)

    flower.__dict__.update(_pull_and_store_message=look_and_ring, _push_messages=push_with_riders, time=pace)
    # Flower empties a letter before it is sent, whose parts it sends by themselves.
    connection.__dict__["remove_content_from_message"] = lambda message: message
    names = nodestate_factory.__dict__
    names["InMemoryNodeState"] = telling(names["InMemoryNodeState"], pace.tell)


def with_riders(receive: Any, pull_object: Any) -> tuple[Any, Any]:
    """Flower's ways to fetch a letter and a part, where a part that came with the letter is not fetched again."""
    came: dict[str, bytes] = {}

    def receive_all() -> Any:
        if (received := receive()) is not None:
            came.update(riding.unseat(received[0]))
        return received

    def pull(run: int, name: str) -> bytes:
        part = came.pop(name, None)
        return bytes(pull_object(run, name)) if part is None else part

    return receive_all, pull


def seated(send: Any, store: Any) -> Any:
    """Flower's way to send a letter, its parts with it if they are all here and small."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    def send_all(message: Message, tree: ObjectTree, seconds: float) -> Any:
        riding.seat(message, {part.object_id: store.get(part.object_id) or b"" for part in iterate_object_tree(tree)})
        return send(message, tree, seconds)

    return send_all


def telling(flower: type[Any], tell: Callable[[], None]) -> type[Any]:
    """Flower's state of a SuperNode: small parts ride with letters, and it tells when a part of an answer has come."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    class Telling(flower):  # type: ignore[misc]
        def store_message_and_object_tree(
            self, message: Message, object_tree: ObjectTree, session_id: str
        ) -> tuple[bool, list[str]]:
            came, run = riding.unseat(message), message.metadata.run_id
            stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
            put = super().store_object
            missing = [name for name in missing if not (name in came and put(run, session_id, name, came[name]))]
            tell()
            return stored, missing

        def get_messages(self, **which: Any) -> Any:
            letters = super().get_messages(**which)
            for letter in letters if which.get("is_reply") is False else ():
                tree = self.object_store.get_object_tree(letter.metadata.message_id)
                names = [part.object_id for part in iterate_object_tree(tree)]
                riding.seat(letter, {name: self.object_store.get(name) or b"" for name in names})
            return letters

        def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
            stored: bool = super().store_object(run_id, session_id, object_id, object_content)
            tell()
            return stored

    return Telling


def run_supernode() -> None:
    """Run Flower's `flower-supernode` with this process's arguments."""
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"
    flower_supernode()
