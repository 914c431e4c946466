"""Flower's SuperLink, with patience for its own database: `python -m cli.deployment.superlink` takes the same options.

Every request of a site is a transaction or two of an SQLite database, one at a time. Where many sites answer together
on a busy machine, a transaction may wait for more than the five seconds that Flower grants, or for one of the fifteen
connections. It then refuses the request, and the message that was on its way is lost: the run waits for that site until
`round.deadline`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

_PATIENCE = 25.0  # seconds; less than the 30 after which the ServerApp asks again, while the first answer gets lost
_CONNECTIONS = 64


def be_patient() -> None:
    """Let the connections to come wait longer for each other."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {"busy_timeout": str(int(_PATIENCE * 1000))}
    sql_mixin.__dict__["SQLITE_PRAGMAS"] = tuple((dict(SQLITE_PRAGMAS) | patient).items())
    sql_mixin.__dict__["create_engine"] = _create_engine


def _create_engine(url: str, **options: Any) -> Engine:
    from sqlalchemy import create_engine

    # A database in memory has a single connection.
    return create_engine(url, **({"pool_size": _CONNECTIONS} if "poolclass" not in options else {}), **options)


def main() -> None:
    """Run Flower's `flower-superlink`."""
    from flwr.superlink.cli import flower_superlink

    be_patient()
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
