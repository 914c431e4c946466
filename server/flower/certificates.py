"""The SuperLink takes a new certificate while it runs: Flower reads its files at the start and never again."""

from __future__ import annotations

import importlib
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOOK = 2.0  # seconds between two looks at the files


class Renewal:
    """A certificate and its key, whose files may be replaced. What does not fit together is not taken.

    Connections that are there stay; new ones are shown the new certificate.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._contexts: list[ssl.SSLContext] = []
        self._taken = self._refused = self._read()
        self._lock = threading.Lock()

    def take_part(self) -> None:
        """Have the servers to come take new certificates, and look for one every few seconds."""
        grpc = importlib.import_module("grpc")
        grpc.__dict__["ssl_server_credentials"] = self.grpc_credentials
        config = importlib.import_module("uvicorn.config").__dict__
        config["create_ssl_context"] = self.remembering(config["create_ssl_context"])
        threading.Thread(target=self._watch, daemon=True).start()

    def grpc_credentials(
        self, pairs: Any, root_certificates: bytes | None = None, require_client_auth: bool = False
    ) -> Any:
        """As `grpc.ssl_server_credentials`, but a certificate that was taken is shown to the next connection.

        Only once: each answer makes gRPC replace what its handshakes under way still refer to, and when many sites
        call at once that ends the process now and then (`Check failed: prior > 0`). None says that nothing is new.
        """
        import grpc

        shown, lock = self._taken, threading.Lock()

        def configured(pair: tuple[bytes, bytes]) -> Any:
            certificate, key = pair
            return grpc.ssl_server_certificate_configuration(((key, certificate),), root_certificates)

        def fresh() -> Any:
            nonlocal shown
            with lock:
                taken = self._taken
                if taken == shown:
                    return None
                shown = taken
            return configured(taken)

        return grpc.dynamic_ssl_server_credentials(configured(shown), fresh, require_client_auth)

    def remembering(self, create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        """Let what makes TLS contexts for HTTP make such as can be given a new certificate later."""

        def made(*arguments: Any, **options: Any) -> ssl.SSLContext:
            self._contexts.append(create(*arguments, **options))
            return self._contexts[-1]

        return made

    def look(self) -> None:
        """Take what the files hold, if it is new and of use."""
        with self._lock:
            try:
                found = self._read()
                if found in (self._taken, self._refused):
                    return
                self._refused = found
                # On trial first: half of a pair would leave the servers with none.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
                for context in self._contexts:
                    context.load_cert_chain(self._certificate, self._key)
            except (OSError, ssl.SSLError) as error:
                say(f"{self._certificate} has changed and is not taken ({error}); the one before is shown still")
                return
            self._taken = found
        say(f"{self._certificate} has changed: new connections are shown it, and nothing is interrupted")

    def _read(self) -> tuple[bytes, bytes]:
        return self._certificate.read_bytes(), self._key.read_bytes()

    def _watch(self) -> None:
        while not threading.Event().wait(_LOOK):
            self.look()


def say(text: str) -> None:
    """Tell whoever reads the server's log."""
    print(f"coterie: {text}", file=sys.stderr, flush=True)
