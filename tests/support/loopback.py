"""A Flower Grid that runs the real ClientApp in this process, so that rounds can be tested in milliseconds.

Messages are Flower's own; what goes wrong is injected: replies may be changed, lost, answered with an error, or come in
another order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from client.app import app as client_app
from server.flower.messages import Run, app_raised, empty_run, set_message_id, speak_as

SUPERLINK = 1

# Given the site's index, the request and the reply: returns what arrives instead, None for a reply that never comes.
Fault = Callable[[int, Message, Message], Message | None]


def set_task_identity() -> None:
    """Flower's Message refuses to be built outside an app process without this."""
    speak_as(run=1, node=SUPERLINK, task=1)


class LoopbackGrid(Grid):
    """`sites` simulated sites; node ids are 100, 101, …"""

    def __init__(
        self,
        sites: int,
        *,
        order_seed: int | None = None,
        fault: Fault | None = None,
        node_configs: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        set_task_identity()
        self.connected = {100 + index: index for index in range(sites)}
        self.pushed: list[Message] = []
        self.replies: list[Message] = []
        self._count = sites
        # What single sites are told beyond their share of the data.
        self._node_configs = node_configs or {}
        self._order = random.Random(order_seed) if order_seed is not None else None
        self._fault = fault
        self._replies: dict[str, Message] = {}

    def connect(self, node: int, index: int) -> None:
        """A site appears on a node."""
        self.connected[node] = index

    def disconnect(self, node: int) -> None:
        """A node is gone."""
        del self.connected[node]

    def set_run(self, run: Run) -> None:
        raise AssertionError("the loopback has one run")

    @property
    def run(self) -> Run:
        return empty_run(1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.connected)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(set_message_id(message))
            self.pushed.append(message)
            reply = self._answer(message)
            if reply is not None:
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = [message_id for message_id in message_ids if message_id in self._replies]
        if self._order is not None:
            self._order.shuffle(ids)
        return [self._replies.pop(message_id) for message_id in ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def node_config(self, index: int) -> dict[str, bool | int | float | str]:
        """What a site's operator set up; a site with data of its own has more."""
        return {"partition-id": index, "num-partitions": self._count, **self._node_configs.get(index, {})}

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        index = self.connected[node]
        context = Context(
            run_id=1,
            node_id=node,
            node_config=self.node_config(index),
            state=RecordDict(),
            run_config={},
        )
        try:
            reply = client_app(message, context)
        except Exception as error:
            reply = app_raised(message, str(error))
        set_message_id(reply)
        self.replies.append(reply)
        return reply if self._fault is None else self._fault(index, message, reply)
