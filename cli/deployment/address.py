"""Addresses of the federation: how they are written, and whether anybody answers there."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cli.deployment.listeners import who_listens
from cli.deployment.proxy import connect
from common.config import SettingsError

FLEET_PORT = 9092
CONTROL_PORT = 8000
HEALTH_PORT = 9095

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
# What listens on every network card → how this machine itself calls it.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PATIENCE = 5.0  # seconds to wait for an answer


@dataclass(frozen=True)
class Address:
    """A host (name or IP address, IPv6 without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def to_call(self) -> Address:
        """Where this machine itself reaches what listens here."""
        return Address(_HERE.get(self.host, self.host), self.port)

    def everywhere(self) -> Address:
        """Where to listen, for others to call this address: on all network cards, or here alone."""
        is_ip6 = ":" in self.host
        if self.is_local:
            return self if is_ip6 else Address("127.0.0.1", self.port)
        return Address("::" if is_ip6 else "0.0.0.0", self.port)

    @property
    def is_local(self) -> bool:
        """Whether only programs on the same machine can call it."""
        return self.host == "localhost" or (is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback)


def is_ip(host: str) -> bool:
    """Tell an IP address from a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_host(host: str) -> str:
    """Return a host that sites can call, or raise saying why it cannot be one."""
    if host in _HERE:
        raise SettingsError(f"{host} means every network card of the server: name the one address that sites can call")
    labels = host.removesuffix(".").split(".")
    if is_ip(host) or (len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)):
        return host
    raise SettingsError(f"{host!r} is neither a host name nor an IP address")


def parse_address(text: str, port: int) -> Address:
    """Read HOST, HOST:PORT, or [IPv6]:PORT; `port` is the default."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", text)
    if bracketed:
        host, number = bracketed.groups()
    elif is_ip(text):
        host, number = text, None
    else:
        host, _, number = text.partition(":")
    if number is not None and number != "" and not (number.isdecimal() and 0 < int(number) < 65536):
        raise SettingsError(f"{text!r}: the port must be a number from 1 to 65535")
    if not host or (number == "" and text.endswith(":")):
        raise SettingsError(f"{text!r} is not an address: write HOST or HOST:PORT")
    return Address(host, int(number) if number else port)


def require_free(address: Address, setting: str) -> None:
    """Raise if something listens on `address` already; `setting` is what the user may change."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address.host, address.port))
        except OSError as error:
            holder = who_listens(address.port) if error.errno == errno.EADDRINUSE else ""
            raise SettingsError(
                f"cannot listen on {address}: {error.strerror}{f' by {holder}' * bool(holder)}; end the program that "
                f"uses it, or change {setting}"
            ) from None


def greet(address: Address, authority: Path | None) -> str:
    """Call a server once; return why it does not answer, or nothing if it does.

    With `authority` the server must show a certificate that this CA issued for the address. One that is not right
    raises `SettingsError`, because waiting would not make it right.
    """
    try:
        with connect(address.host, address.port, os.environ, _PATIENCE) as connection:
            if authority is not None:
                context = ssl.create_default_context(cafile=str(authority))
                context.set_alpn_protocols(["h2"])
                context.wrap_socket(connection, server_hostname=address.host).close()
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(_distrust(address, authority, error)) from None
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            raise SettingsError(
                f"{address} answers without TLS: it was started with --insecure, or another program listens there"
            ) from None
        return str(error.reason or error)
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


def _distrust(address: Address, authority: Path | None, error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if "expired" in reason:
        hint = "the coordinator runs `coterie provision` with --renew"
    elif "ostname mismatch" in reason or "address mismatch" in reason:
        hint = "the coordinator adds this name to `names` in server.toml and runs `coterie provision` with --renew"
    else:
        hint = f"{authority} is not of the federation this server belongs to: use the ca.crt of this site's own kit"
    return f"the certificate of {address} is refused ({reason.rstrip('.')}): {hint}"
