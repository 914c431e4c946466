"""The web proxy between a site and its server: found in either spelling, as gRPC finds it in one."""

from __future__ import annotations

import ipaddress
import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from common.config import SettingsError

# gRPC asks for these, in this order, in lower case alone; `no_grpc_proxy` in the place of `no_proxy`.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LONGEST_ANSWER = 65_536  # bytes


@dataclass(frozen=True)
class Proxy:
    """Where an HTTP proxy is, and what it is shown (empty: nothing)."""

    host: str
    port: int
    credentials: str = ""


def for_programs(environment: Mapping[str, str], direct: Iterable[str] = ()) -> dict[str, str]:
    """Return an environment in which programs find the proxy, whoever made them, and no loopback goes through it.

    `direct` are further hosts that are never called through the proxy.
    """
    spelt = dict(environment)
    for name in (*_PROXIES, *_EXCEPTIONS):
        if value := environment.get(name) or environment.get(name.upper()):
            spelt[name] = value if name in _EXCEPTIONS or "://" in value else f"http://{value}"
    if any(name in spelt for name in _PROXIES):
        for name in _EXCEPTIONS:
            if name == "no_proxy" or name in spelt:
                listed = [entry.strip() for entry in spelt.get(name, "").split(",") if entry.strip()]
                spelt[name] = ",".join(dict.fromkeys([*listed, *_LOOPBACK, *direct]))
        # Some programs prefer the other spelling.
        spelt["NO_PROXY"] = spelt["no_proxy"]
    return spelt


def proxy_for(host: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy through which gRPC would call a host; None: directly."""
    spelt = for_programs(environment)
    found = next(((name, spelt[name]) for name in _PROXIES if spelt.get(name)), None)
    if found is None or any(_is_excepted(host, entry) for entry in _exceptions(spelt)):
        return None
    name, url = found
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return Proxy(parts.hostname, parts.port or 80, credentials)
    except ValueError:
        raise SettingsError(f"{name} in the environment must be http://HOST:PORT: gRPC speaks to no other") from None


def connect(host: str, port: int, environment: Mapping[str, str], timeout: float) -> socket.socket:
    """Open a connection, through the proxy if there is one; `OSError` says why there is none."""
    proxy = proxy_for(host, environment)
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    through = f"the proxy {proxy.host}:{proxy.port}"
    try:
        connection = socket.create_connection((proxy.host, proxy.port), timeout)
    except OSError as error:
        raise OSError(f"{through} does not answer: {error.strerror or error}") from None
    try:
        _open_tunnel(connection, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", proxy, through)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_tunnel(connection: socket.socket, target: str, proxy: Proxy, through: str) -> None:
    shown = b64encode(proxy.credentials.encode()).decode()
    authorization = f"Proxy-Authorization: Basic {shown}\r\n" if proxy.credentials else ""
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n".encode())
    answer = b""
    # A byte at a time, so that nothing of what follows is taken.
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(answer) > _LONGEST_ANSWER:
            raise OSError(f"{through} does not answer as one")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode("ascii", "replace")
    if status.split()[1:2] != ["200"]:
        raise OSError(f"{through} does not connect to {target}: {status[:100]}")


def _exceptions(spelt: Mapping[str, str]) -> list[str]:
    listed = next((spelt[name] for name in _EXCEPTIONS if spelt.get(name)), "")
    return [entry.strip() for entry in listed.split(",") if entry.strip()]


def _is_excepted(host: str, entry: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return host.lower().endswith(entry.lower())
