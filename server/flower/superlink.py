"""Flower's SuperLink in this process: patient with its own database, and answering its operator alone.

Imports Flower only when it is called.
"""

from __future__ import annotations

import hmac
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.supercore.auth.typing import AccountInfo
    from sqlalchemy import Engine


def be_patient(seconds: float, connections: int) -> None:
    """Let the database connections to come wait this long for each other, and let there be so many of them."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {"busy_timeout": str(int(seconds * 1000))}
    sql_mixin.__dict__["SQLITE_PRAGMAS"] = tuple((dict(SQLITE_PRAGMAS) | patient).items())
    sql_mixin.__dict__["create_engine"] = partial(_create_engine, connections)


def ask_for(secret: str) -> None:
    """Let the Control API to come answer only those who show this secret: it starts runs and shows their logs."""
    from flwr.common.constant import ACCESS_TOKEN_KEY
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    class SecretPlugin(NoOpControlAuthnPlugin):
        """As without accounts, but for those who know the secret alone."""

        def validate_tokens_in_metadata(
            self, metadata: Sequence[tuple[str, str | bytes]]
        ) -> tuple[bool, AccountInfo | None]:
            shown = next((value for key, value in metadata if key == ACCESS_TOKEN_KEY), "")
            shown = shown if isinstance(shown, bytes) else shown.encode()
            if not hmac.compare_digest(shown, secret.encode()):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

        def refresh_tokens(
            self, metadata: Sequence[tuple[str, str | bytes]]
        ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
            return None, None

    # Not by an import statement: the package has a function of the same name.
    module = importlib.import_module("flwr.superlink.cli.flower_superlink")
    module.__dict__["load_control_authn_plugin"] = SecretPlugin


def guard() -> None:
    """Let the Fleet API to come take from sites only what `server.flower.fleet` says, and keep its database small."""
    from flwr.server.superlink.linkstate import linkstate_factory

    from server.flower.fleet import LARGEST_REQUEST, Fleet
    from server.flower.kept_messages import KeptMessages

    linkstate_factory.__dict__["SqlLinkState"] = KeptMessages
    module = importlib.import_module("flwr.superlink.cli.flower_superlink")
    module.__dict__["FleetServicer"] = Fleet
    module.__dict__["GRPC_MAX_MESSAGE_LENGTH"] = LARGEST_REQUEST


def run_superlink() -> None:
    """Run Flower's `flower-superlink` with this process's arguments."""
    from flwr.superlink.cli import flower_superlink

    sys.argv[0] = "flower-superlink"
    flower_superlink()


def _create_engine(connections: int, url: str, **options: Any) -> Engine:
    from sqlalchemy import create_engine

    # A database in memory has a single connection.
    return create_engine(url, **({"pool_size": connections} if "poolclass" not in options else {}), **options)
