"""Where a site keeps its private map between what it sends and the answer, which may be days.

A site of its own draws a secret for each map from the operating system and keeps both on its disk, in files that only
its user can read: neither can be worked out from anything the server knows, and a restart loses nothing. Asked the same
thing twice, it answers with the same map, so that two answers tell no more than one. A simulated site has no disk of
its own; its secret comes from the run's seed, so that equal runs give equal bits.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from client.collaboration.anchors import agreement
from client.collaboration.reduction import PrivateMap, fit_private_map
from client.identity import Identity, cache_folder
from common.config import SettingsError, SiteSettings
from common.foreign import named_faults, parse_tensors
from common.lock import exclusive
from common.randomness import derive_seed, secret_generator

_SECRET_BYTES = 32


class MapIsGone(ValueError):
    """The answer to something that this site did not send, or does not remember."""


class Vault:
    """The private maps of one site in one run's settings."""

    def __init__(self, identity: Identity, settings: SiteSettings) -> None:
        self._identity, self._settings = identity, settings
        self._folder = cache_folder(identity, settings.cache) / "private"

    def map_for(self, rows: NDArray[np.floating], dimensions: int, digest: str) -> tuple[PrivateMap, int]:
        """The map of these training rows, and the secret that belongs to it.

        `digest` changes with the data. A map that was made for the same data and settings is used again.
        """
        if self._identity.is_simulated:
            secret = self._simulated_secret()
            return fit_private_map(rows, dimensions, secret_generator(secret, "rotation")), secret
        asked = "\x1f".join((self._identity.name, digest, str(dimensions), agreement(self._settings)))
        key = hashlib.sha256(asked.encode()).hexdigest()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self._folder / "lock"):
                return self._kept(key) or self._made(key, rows, dimensions)
        except OSError as error:
            raise SettingsError(
                f"cannot keep the private map in {self._folder}: {error.strerror or error}; without it the answer "
                "would be of no use: make room, or name another folder as cache in site.toml"
            ) from error

    def recall(self, ticket: NDArray[np.uint8], rows: NDArray[np.floating], dimensions: int) -> PrivateMap:
        """The map with this ticket; `rows` and `dimensions` are what a simulated site fits it to again."""
        if self._identity.is_simulated:
            found = fit_private_map(rows, dimensions, secret_generator(self._simulated_secret(), "rotation"))
            if not np.array_equal(found.ticket, ticket):
                raise MapIsGone("the answer belongs to another private map than that of this site's data")
            return found
        path = self._folder / f"map-{ticket.tobytes().hex()}.safetensors"
        try:
            found, _ = _read(path.read_bytes())
        except (OSError, ValueError):
            raise MapIsGone(
                f"the private map that this answer belongs to is not in {self._folder}: another site made it, or "
                "it was removed since"
            ) from None
        if not np.array_equal(found.ticket, ticket):
            raise MapIsGone(f"{path} is damaged")
        return found

    def _simulated_secret(self) -> int:
        return derive_seed(self._settings.seed, "private map", self._identity.name)

    def _kept(self, key: str) -> tuple[PrivateMap, int] | None:
        try:
            name = (self._folder / f"key-{key}").read_text(encoding="ascii")
            return _read((self._folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def _made(self, key: str, rows: NDArray[np.floating], dimensions: int) -> tuple[PrivateMap, int]:
        entropy = secrets.token_bytes(_SECRET_BYTES)
        secret = int.from_bytes(entropy, "big")
        made = fit_private_map(rows, dimensions, secret_generator(secret, "rotation"))
        name = f"map-{made.ticket.tobytes().hex()}.safetensors"
        content: dict[str, NDArray[Any]] = {
            "mean": made.mean,
            "components": np.ascontiguousarray(made.components),
            "secret": np.frombuffer(entropy, np.uint8),
        }
        _write(self._folder / name, save(content))
        _write(self._folder / f"key-{key}", name.encode())
        return made, secret


def _read(content: bytes) -> tuple[PrivateMap, int]:
    with named_faults():
        arrays = parse_tensors(content)
        return PrivateMap(arrays["mean"], arrays["components"]), int.from_bytes(arrays["secret"].tobytes(), "big")


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads; it is whole and on disk, or not there."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
