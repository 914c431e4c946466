"""Flower's SuperLink in this process, with patience for its own database. Imports Flower only when it is called."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine


def be_patient(seconds: float, connections: int) -> None:
    """Let the database connections to come wait this long for each other, and let there be so many of them."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {"busy_timeout": str(int(seconds * 1000))}
    sql_mixin.__dict__["SQLITE_PRAGMAS"] = tuple((dict(SQLITE_PRAGMAS) | patient).items())
    sql_mixin.__dict__["create_engine"] = partial(_create_engine, connections)


def run_superlink() -> None:
    """Run Flower's `flower-superlink` with this process's arguments."""
    from flwr.superlink.cli import flower_superlink

    sys.argv[0] = "flower-superlink"
    flower_superlink()


def _create_engine(connections: int, url: str, **options: Any) -> Engine:
    from sqlalchemy import create_engine

    # A database in memory has a single connection.
    return create_engine(url, **({"pool_size": connections} if "poolclass" not in options else {}), **options)
