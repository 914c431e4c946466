"""Flower's SuperLink, with patience for its own database: `python -m cli.superlink` takes the same options.

Every request of a site is a transaction or two of an SQLite database, one at a time. Where many sites answer together
on a busy machine, a transaction may wait for more than the five seconds that Flower grants. It then refuses the
request, and the message that was on its way is lost: the run waits for that site until `round.deadline`.
"""

from __future__ import annotations

import sys

_PATIENCE = 60.0  # seconds


def be_patient() -> None:
    """Let the connections to come wait longer for each other."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {"busy_timeout": str(int(_PATIENCE * 1000))}
    sql_mixin.__dict__["SQLITE_PRAGMAS"] = tuple((dict(SQLITE_PRAGMAS) | patient).items())


def main() -> None:
    """Run Flower's `flower-superlink`."""
    from flwr.superlink.cli import flower_superlink

    be_patient()
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
