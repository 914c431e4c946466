"""Simulated sites without an engine: one after the other in this process, which holds one copy of the data."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from server.asking.grid import STOPPED, RunInterrupted
from server.flower.messages import Run, app_raised, empty_run, set_message_id, speak_as

_RUN, _SERVER, _FIRST_NODE = 1, 1, 100


class OneProcessGrid(Grid):
    """Hands every message to a ClientApp when its reply is fetched, so one reply exists at a time.

    Parameters
    ----------
    app
        Of the sites.
    sites
        How many there are.
    stop
        When set, no further message is worked on.
    """

    def __init__(self, app: ClientApp, sites: int, stop: threading.Event) -> None:
        speak_as(run=_RUN, node=_SERVER, task=_RUN)
        self._app = app
        self._stop = stop
        self._contexts = {
            _FIRST_NODE + index: Context(
                run_id=_RUN,
                node_id=_FIRST_NODE + index,
                node_config={"partition-id": index, "num-partitions": sites},
                state=RecordDict(),
                run_config={},
            )
            for index in range(sites)
        }
        self._waiting: dict[str, Message] = {}
        self._pushed = 0

    def set_run(self, run: Run) -> None:
        """There is one run."""

    @property
    def run(self) -> Run:
        """The one run."""
        return empty_run(_RUN)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message; part of Flower's interface."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All sites are always there."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are asked for."""
        ids = []
        for message in messages:
            # In the order of their names: who asks for replies sorts them, and members come group by group.
            self._pushed += 1
            ids.append(set_message_id(message, f"{self._pushed:020d}"))
            self._waiting[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the sites work, one after the other."""
        return [self._answer(self._waiting.pop(one)) for one in message_ids if one in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both at once."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        if self._stop.is_set():
            raise RunInterrupted(STOPPED)
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = app_raised(message, f"{type(error).__name__}: {error}")
        set_message_id(reply)
        return reply
