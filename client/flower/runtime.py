"""The Runtime API of local SuperNodes: claiming their tasks, and telling them how a task ended."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp as flower

_REPLY = 10.0  # seconds a SuperNode may take to answer; a claimed task must start within 30
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

_log = logging.getLogger("coterie.executor")


class NoAnswer(Exception):
    """A SuperNode did not answer as one does."""


class NobodyThere(NoAnswer):
    """Nobody listens at the SuperNode's port."""


@dataclass(frozen=True)
class Link:
    """How the SuperNodes' Runtime API is spoken to: TLS with `certificates` (PEM), or plainly if that is None."""

    certificates: bytes | None
    secret: bytes | None = None

    @classmethod
    def from_files(cls, certificates: Path | None, secret: str | None) -> Link:
        """Read what the operator names; `OSError` or `ValueError` if it cannot be used."""
        pem = None if certificates is None else certificates.expanduser().read_bytes()
        link = cls(pem, load_superexec_auth_secret(secret))
        # Certificates that are none show here, and not at every SuperNode.
        link.client("localhost:1", ()).close()
        return link

    def client(self, address: str, interceptors: Sequence[ProtobufClientInterceptor]) -> RuntimeHttpClient:
        """Connect without Flower's endless retries, which would hold up the other SuperNodes."""
        verify: ssl.SSLContext | bool = False
        if self.certificates is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=self.certificates.decode("ascii"))
        scheme = "http" if self.certificates is None else "https"
        return RuntimeHttpClient(f"{scheme}://{address}", interceptors=interceptors, verify=verify, timeout=_REPLY)


@dataclass(frozen=True)
class Task:
    """A claimed task; `token` is the right to run it."""

    address: str
    number: int
    token: str


@dataclass
class TaskQueue:
    """The tasks that wait at a SuperNode."""

    address: str
    link: Link
    _client: RuntimeHttpClient | None = field(default=None, repr=False)

    def acquire(self, *, claim: bool) -> Task | None:
        """Claim the oldest waiting task, None if there is none; `NoAnswer` if the SuperNode does not answer.

        Without `claim` only its answer counts: a SuperNode gives no task to one who can run none.
        """
        wanted = [TaskType.CLIENT_APP] if claim else []
        try:
            reply = self._connection().AcquireTask(AcquireTaskRequest(supported_task_types=wanted))
        except httpx.ConnectError as error:
            raise NobodyThere(str(error)) from error
        except (httpx.HTTPError, ValueError) as error:  # ValueError: somebody else's answer
            raise NoAnswer(str(error)) from error
        if not (reply.HasField("task") and reply.token):
            return None
        return Task(self.address, reply.task.task_id, reply.token)

    def _connection(self) -> RuntimeHttpClient:
        if self._client is None:
            # Named as Flower's own, because SuperNodes check the versions of the components they know.
            interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
            if self.link.secret is not None:
                interceptors.append(
                    SuperExecAuthHttpInterceptor(master_secret=self.link.secret, protected_methods={_ACQUIRE})
                )
            self._client = self.link.client(self.address, interceptors)
        return self._client


def header_of(message: Message) -> bytes:
    """Return a message without its content: enough to answer it, and short enough for a pipe."""
    header: bytes = message_to_proto(remove_content_from_message(message)).SerializeToString()
    return header


def report_crash(task: Task, link: Link, header: bytes, cause: str) -> None:
    """Answer in the name of a dead child, as Flower's SuperNode would when it misses the child's heartbeat."""
    message = message_from_proto(MessageProto.FromString(header))
    about = message.metadata
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.number, about.run_id, about.dst_node_id
    client = _as_task(task, link)
    reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, f"ClientApp: {cause}"), reply_to=message)
    context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
    try:
        flower.push_message(client, reply, context)
    except httpx.HTTPError as error:
        # The SuperNode will miss the heartbeat.
        _log.warning("SuperNode %s could not be told: %s", task.address, error)
        return
    flower.push_task_output(client, None, SubStatus.FAILED, cause)


def report_end(task: Task, link: Link, cause: str) -> None:
    """End a task that nobody waits for, without a reply."""
    flower.push_task_output(_as_task(task, link), None, SubStatus.FAILED, cause)


def _as_task(task: Task, link: Link) -> RuntimeHttpClient:
    """Connect with the right to speak for a task."""
    return link.client(
        task.address,
        [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(task.token)],
    )
