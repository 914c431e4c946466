"""Flower's SuperNode in this process: prompt, and it leaves bundles closed. Imports Flower only when it is called."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.nodestate import nodestate_factory

    pace, look = Pace(), flower._pull_and_store_message

    def look_and_ring(**arguments: Any) -> int | None:
        begun, pace.held = time.monotonic(), 0.0
        run: int | None = look(**arguments)
        if run is None:
            pace.held = time.monotonic() - begun
        else:
            ring()
        return run

    flower.__dict__.update(_pull_and_store_message=look_and_ring, time=pace)
    names = nodestate_factory.__dict__
    names["InMemoryNodeState"] = telling(names["InMemoryNodeState"], pace.tell)


def telling(flower: type[Any], tell: Callable[[], None]) -> type[Any]:
    """Flower's state of a SuperNode, which tells when a part of an answer has come."""

    class Telling(flower):  # type: ignore[misc]
        def store_message_and_object_tree(
            self, message: Message, object_tree: ObjectTree, session_id: str
        ) -> tuple[bool, list[str]]:
            stored: tuple[bool, list[str]] = super().store_message_and_object_tree(message, object_tree, session_id)
            tell()
            return stored

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
