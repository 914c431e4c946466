"""Flower's SuperLink, with patience for its own database: `python -m cli.deployment.superlink` takes the same options.

Every request of a site is a transaction or two of an SQLite database, one at a time. Where many sites answer together
on a busy machine, a transaction may wait for more than the five seconds that Flower grants, or for one of the fifteen
connections. It then refuses the request, and the message that was on its way is lost: the run waits for that site until
`round.deadline`.
"""

from __future__ import annotations

from server.flower import superlink

_PATIENCE = 25.0  # seconds; less than the 30 after which the ServerApp asks again, while the first answer gets lost
_CONNECTIONS = 64


def main() -> None:
    """Run Flower's `flower-superlink`."""
    superlink.be_patient(_PATIENCE, _CONNECTIONS)
    superlink.run_superlink()


if __name__ == "__main__":
    main()
