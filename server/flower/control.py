"""The SuperLink's Control API: which sites it knows, and taking them in or shutting them out."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import AuthnType, Status, SubStatus
from flwr.common.serde import user_config_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.run_pb2 import Run
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext


class SuperLinkAway(Exception):
    """No SuperLink answers."""


class SuperLinkRefuses(Exception):
    """The SuperLink answered, but not as asked."""


@dataclass(frozen=True)
class KnownSite:
    """A site whose key the SuperLink has; `is_out` once it was unregistered, which is for good.

    `name` is what its key was registered under; `since` is when it was last let in, and `until` when it was last seen
    or, of one that is online, until when it counts as online without another sign of life. Times as Flower writes them.
    """

    node: int
    is_out: bool
    name: str = ""
    is_online: bool = False
    since: str = ""
    until: str = ""


@dataclass(frozen=True)
class KnownRun:
    """A run as the SuperLink has it.

    `state` is "waiting", "running", or how it ended: "finished", "failed" or "stopped"; `started` is when it was sent.
    """

    number: int
    state: str
    started: str
    ended: str
    details: str
    settings: Mapping[str, object]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in (WAITING, RUNNING)

    def text(self, key: str) -> str:
        """One of its settings, for people."""
        return str(self.settings.get(key, ""))


WAITING, RUNNING = "waiting", "running"
_ENDS = {SubStatus.COMPLETED: "finished", SubStatus.FAILED: "failed", SubStatus.STOPPED: "stopped"}


class Control:
    """A connection to a running SuperLink; every call may raise `SuperLinkAway` or `SuperLinkRefuses`."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def sites(self) -> dict[bytes, KnownSite]:
        """Return the sites that the SuperLink has or had, by `key_bytes`."""
        with _translated():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {
            node.public_key: KnownSite(
                node.node_id,
                node.status == NodeStatus.UNREGISTERED,
                node.name,
                node.status == NodeStatus.ONLINE,
                node.last_activated_at,
                node.last_deactivated_at or _written(node.online_until),
            )
            for node in nodes
        }

    def runs(self) -> list[KnownRun]:
        """Return all runs, the latest first."""
        with _translated():
            runs = self._client.ListRuns(ListRunsRequest()).run_dict.values()
        return sorted((_known(run) for run in runs), key=lambda run: run.started, reverse=True)

    def stop(self, run: int) -> bool:
        """End a run; return whether the SuperLink did."""
        with _translated():
            return bool(self._client.StopRun(StopRunRequest(run_id=run)).success)

    def register(self, key: bytes, name: str) -> None:
        """Take in a site."""
        with _translated():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, site: KnownSite) -> None:
        """Shut out a site for good."""
        with _translated():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=site.node))


def _known(run: Run) -> KnownRun:
    status = run.status.status
    state = _ENDS.get(run.status.sub_status, "failed") if status == Status.FINISHED else RUNNING
    return KnownRun(
        run.run_id,
        WAITING if status == Status.PENDING else state,
        run.pending_at,
        run.finished_at,
        run.status.details,
        user_config_from_proto(run.override_config),
    )


def _written(seconds: float) -> str:
    """A moment in seconds as Flower writes others."""
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else ""


class _Bearer:
    """Shows the operator's secret with every request."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self._secret}"
        return call_next(context)


@contextmanager
def connected(address: str, ca: Path | None, secret: str = "") -> Iterator[Control]:
    """Speak to the Control API at host:port; `ca` certifies it, None is without TLS, and without the secret."""
    client = ControlHttpClient.from_server_address(
        address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        # Named as Flower's own, because a SuperLink checks the versions of the components it knows.
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), *([_Bearer(secret)] if secret else [])],
    )
    try:
        yield Control(client)
    finally:
        client.close()


def operator_credentials(address: str, secret: str) -> str:
    """Return what Flower's own `flwr` reads from `credentials.yaml` in its home, to show a SuperLink the secret."""
    values = {
        AUTHN_TYPE_STORE_KEY: AuthnType.OIDC,
        ACCESS_TOKEN_STORE_KEY: secret,
        # It is not renewed, but without one `flwr` sends neither.
        REFRESH_TOKEN_STORE_KEY: "none",
    }
    # JSON is YAML.
    return json.dumps({key % address: b64encode(value.encode()).decode() for key, value in values.items()}, indent=1)


def key_bytes(key: EllipticCurvePublicKey) -> bytes:
    """Return a public key as the SuperLink keeps it."""
    return public_key_to_bytes(key)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise SuperLinkAway(str(error)) from error
    except httpx.HTTPStatusError as error:
        raise SuperLinkRefuses(str(error)) from error
