"""Exit code 0 if a SuperLink or SuperNode serves: `python -m cli.deployment.health [HOST:PORT]`, its health endpoint.

Containers ask this every few seconds, so it imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

ADDRESS = "127.0.0.1:9095"
_TIMEOUT = 10.0  # seconds


def serves(address: str, timeout: float = _TIMEOUT) -> bool:
    """Ask a health endpoint, which has no TLS, whether its program serves."""
    # A proxy of the environment would be asked for loopback addresses too.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return bool(reply.status == HealthCheckResponse.SERVING)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    return 0 if serves(arguments[0] if arguments else ADDRESS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
