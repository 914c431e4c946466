"""Asking a server whether it knows this site's key, without taking part. Imports Flower only when it is called."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.clock import TIME_HEADER, ahead

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_PATIENCE = 10.0  # seconds


@dataclass(frozen=True)
class Answer:
    """What a server says to a site that knocks.

    `knows_key`: whether the site may take part; None: it did not say, and `reason` tells what it said instead. `ahead`:
    by how many seconds this machine's clock is ahead of the server's; None: not known.
    """

    knows_key: bool | None
    ahead: float | None = None
    reason: str = ""


def knock(server: str, ca: bytes, key: EllipticCurvePrivateKey) -> Answer:
    """Ask to be let in with an interval between signs of life that is never allowed: the key is looked up before."""
    import grpc
    from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.proto.fleet_pb2_grpc import FleetStub
    from flwr.supercore.error import ApiErrorCode
    from flwr.supercore.grpc import create_channel
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    channel = create_channel(
        server, insecure=False, root_certificates=ca, interceptors=[NodeAuthClientInterceptor(key, key.public_key())]
    )
    request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=0.0)
    before = time.time()
    try:
        FleetStub(channel).ActivateNode(request, timeout=_PATIENCE)
    except grpc.RpcError as error:
        seconds = _difference(error, before)
        said = str(error.details() or "")
        code = _code(said)
        if code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
            return Answer(True, seconds)
        if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            return Answer(False, seconds)
        return Answer(None, seconds, said or str(error.code()))
    finally:
        channel.close()
    return Answer(None, None, "the server let this site in where it should not")


def _code(said: str) -> int | None:
    """Flower's number of an error, which it tells as JSON."""
    try:
        found = json.loads(said)["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _difference(error: object, before: float) -> float | None:
    for key, value in getattr(error, "initial_metadata", tuple)() or ():
        if key == TIME_HEADER and isinstance(value, str) and value.replace(".", "", 1).isdecimal():
            return ahead(before, float(value), time.time())
    return None
