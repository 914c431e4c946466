"""Where things are in the folder that `coterie provision` makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Where things are in the folder of a federation."""

    root: Path

    @property
    def authority_key(self) -> Path:
        return self.root / "ca" / "ca.key"

    @property
    def authority(self) -> Path:
        return self.root / "ca" / "ca.crt"

    @property
    def requests(self) -> Path:
        """What an outside authority is to sign; it is there if the federation has such a one."""
        return self.root / "requests"

    @property
    def server(self) -> Path:
        return self.root / "server"

    @property
    def server_file(self) -> Path:
        return self.server / "server.toml"

    @property
    def operator(self) -> Path:
        """The operator's FLWR_HOME."""
        return self.root / "operator"

    @property
    def operator_secret(self) -> Path:
        return self.operator / "secret"

    def public_key(self, site: str) -> Path:
        return self.server / "keys" / f"{site}.pub"

    def certificate(self, site: str) -> Path:
        return self.server / "keys" / f"{site}.crt"

    def kit(self, site: str) -> Path:
        return self.root / "sites" / site
