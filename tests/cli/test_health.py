"""What a container's health check says of a program's health endpoint."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from cli.deployment.health import main, serves


@pytest.fixture
def endpoint() -> Iterator[tuple[str, health.HealthServicer]]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None)


def test_a_program_that_serves_is_healthy(endpoint: tuple[str, health.HealthServicer]) -> None:
    assert main([endpoint[0]]) == 0


def test_a_program_that_says_it_does_not_serve_is_not(endpoint: tuple[str, health.HealthServicer]) -> None:
    endpoint[1].set("", HealthCheckResponse.NOT_SERVING)
    assert main([endpoint[0]]) == 1


def test_nobody_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        # Somebody listens, but never answers.
        assert not serves(address, timeout=0.5)
    assert main([address]) == 1
