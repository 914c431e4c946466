"""Flower's SuperLink, with patience for its own database: `python -m cli.deployment.superlink` takes the same options.

One more, and before them: `--operator-secret-file FILE`. Who cannot show what is in it can neither start a run nor read
a log, though the port is open to every account of this machine.

Every request of a site is a transaction or two of an SQLite database, one at a time. Where many sites answer together
on a busy machine, a transaction may wait for more than the five seconds that Flower grants, or for one of the fifteen
connections. It then refuses the request, and the message that was on its way is lost: the run waits for that site until
`round.deadline`.

And with patience for clocks: a site may be off by minutes, and both sides are told. What was
seen of a site, its version and its clock, is kept beside the database.
A certificate that is replaced is taken while the SuperLink runs.
What a site sends is counted and checked before it is kept (`server.flower.fleet`), and the database is cleaned.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cli.deployment.operator_secret import SECRET_OPTION, read_secret
from server.flower import clocks, superlink
from server.flower.certificates import Renewal
from server.flower.sightings import SEEN, Sightings

_PATIENCE = 25.0  # seconds; less than the 30 after which the ServerApp asks again, while the first answer gets lost
_CONNECTIONS = 64


def main() -> None:
    """Run Flower's `flower-superlink`."""
    if sys.argv[1:2] == [SECRET_OPTION]:
        superlink.ask_for(read_secret(Path(sys.argv[2])))
        del sys.argv[1:3]
    superlink.be_patient(_PATIENCE, _CONNECTIONS)
    database = _value_of("--database")
    clocks.tolerate(Sightings(Path(database).with_name(SEEN)) if database else None)
    certificate, key = (_value_of(option) for option in ("--ssl-certfile", "--ssl-keyfile"))
    if certificate and key:
        Renewal(Path(certificate), Path(key)).take_part()
    superlink.guard()
    superlink.run_superlink()


def _value_of(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1] if option in sys.argv[:-1] else ""


if __name__ == "__main__":
    main()
