"""What sites may send to the SuperLink: answers to what they were asked, in their own name and no larger than agreed.

Flower 1.39 holds a message's sender against nothing: a site may put the coordinator's number there, and the message
goes to another site as if a run had asked. It also keeps any number of bytes, and passes them on.

And what they are sent: a site that asks for its next question is answered when there is one. A question counts as
arrived when the site has said so; until then it is handed out again, should the connection break meanwhile.
"""

from __future__ import annotations

import threading
from logging import WARNING
from typing import Any, cast

import grpc
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.supercore import log

from common import riding
from common.wire.records import BESIDE_ARRAYS, MEGABYTE, plain_text
from server.flower.kept_messages import KeptMessages, keep_clean, questions

# What a request may have, before it is looked at. Flower sends arrays in pieces of 5 MiB.
LARGEST_REQUEST = 32 * 2**20
_LARGEST_LETTER = 65_536  # bytes of a message without what it carries
_MOST_PARTS = 1_000
_PIECE = 2 * MEGABYTE  # less than any full piece of an array
_LOCKS = 64
# Seconds for which a site that asks is kept waiting: fewer than those after which proxies give a connection up.
_HELD = 20.0


class Fleet(FleetServicer):
    """Flower's Fleet API, in front of it what the module says.

    Whose key signed a request is compared with `request.node` before it gets here.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A site may send the parts of an answer all at once; they are counted one by one.
        self._one_by_one = [threading.Lock() for _ in range(_LOCKS)]
        # Site → the question that it was handed, until it says that it has it.
        self._handed: dict[int, str] = {}
        keep_clean(self._state)

    @property
    def _state(self) -> KeptMessages:
        return cast(KeptMessages, self.state_factory.state())

    def PullMessages(self, request: PullMessagesRequest, context: grpc.ServicerContext) -> PullMessagesResponse:
        """Hand out the next question; where there is none, wait for it a while."""
        node = request.node.node_id
        if lost := self._handed.pop(node, ""):
            self._state.offer_again(node, lost)

        def there() -> bool:
            return self._state.has_question(node)

        if not self._state.arrivals.wait(questions(node), _HELD, there, context.is_active):
            return PullMessagesResponse()
        response = super().PullMessages(request, context)
        for letter in response.messages_list:
            self._handed[node] = letter.metadata.message_id
            riding.write(letter, self._state.parts_of(letter.metadata.message_id))
        return response

    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest, context: grpc.ServicerContext
    ) -> ConfirmMessageReceivedResponse:
        """Note that a question has arrived."""
        node = request.node.node_id
        if self._handed.get(node) == request.message_object_id:
            self._handed.pop(node, None)
        return super().ConfirmMessageReceived(request, context)

    def PushMessages(self, request: PushMessagesRequest, context: grpc.ServicerContext) -> PushMessagesResponse:
        """Take in the announcement of an answer, and those of its parts that ride along."""
        came = {name: part for letter in request.messages_list for name, part in riding.read(letter).items()}
        if reason := _objection(request, self._state):
            self._refuse(request.node.node_id, reason, context, grpc.StatusCode.PERMISSION_DENIED)
        response = super().PushMessages(request, context)
        # Parts of it may be there already, as parts of others.
        message = request.messages_list[0].metadata
        self._count(request.node.node_id, message.run_id, response.session_id, 0, context)
        for name in [name for name in response.objects_to_push if name in came]:
            part = PushObjectRequest(
                node=request.node,
                run_id=message.run_id,
                session_id=response.session_id,
                object_id=name,
                object_content=came[name],
            )
            if self.PushObject(part, context).stored:
                response.objects_to_push.remove(name)
        return response

    def PushObject(self, request: PushObjectRequest, context: grpc.ServicerContext) -> PushObjectResponse:
        """Take in a part of an answer that was announced."""
        if not request.session_id:
            reason = "it sent a part of no message that it announced"
            self._refuse(request.node.node_id, reason, context, grpc.StatusCode.PERMISSION_DENIED)
        with self._one_by_one[hash(request.session_id) % _LOCKS]:
            size = len(request.object_content)
            self._count(request.node.node_id, request.run_id, request.session_id, size, context)
            # What is of no session, Flower refuses.
            return super().PushObject(request, context)

    def _count(self, node: int, run: int, session: str, more: int, context: grpc.ServicerContext) -> None:
        """Give a message up that would be larger than agreed."""
        root, limit = self._state.announced(session), self._state.limit(run)
        if root is None or limit is None or self._state.bytes_of(root) + more <= limit:
            return
        allowed = (limit - BESIDE_ARRAYS) // MEGABYTE
        reason = f"its answer is larger than {allowed} MB (round.max_message_mb): nothing of it was kept"
        self._state.give_up(run, session, root, reason)
        self._refuse(node, reason, context, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def _refuse(self, node: int, reason: str, context: grpc.ServicerContext, code: grpc.StatusCode) -> None:
        known = self._state.get_node_info(node_ids=[node])
        name = plain_text(known[0].name) if known and known[0].name else str(node)
        log(WARNING, "Refused site %s: %s", name, reason)
        context.abort(code, reason)


def _objection(request: PushMessagesRequest, state: KeptMessages) -> str:
    """Why an announcement is not taken in, if it is not."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return "it sent no message, or several as one"
    letter, tree = request.messages_list[0], request.message_object_trees[0]
    about = letter.metadata
    if about.src_node_id != request.node.node_id:
        return "it sent a message in another's name"
    if not about.reply_to_message_id or about.dst_node_id != SUPERLINK_NODE_ID:
        return "it sent a message that answers nothing"
    if (limit := state.limit(about.run_id)) is None:
        return "it sent a message for a run that does not exist"
    if about.message_id != tree.object_id:
        return "it announced other parts than those of its message"
    if letter.ByteSize() > _LARGEST_LETTER or _parts(tree) > _MOST_PARTS + limit // _PIECE:
        return "it announced a message of too many parts"
    return ""


def _parts(tree: ObjectTree) -> int:
    return 1 + sum(_parts(child) for child in tree.children)
