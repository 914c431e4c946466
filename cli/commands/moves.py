"""`coterie moves`: which sites changed groups, when, and on what evidence."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cli.arguments import Subparsers
from common.config import SettingsError

if TYPE_CHECKING:
    from server.history.event_log import Logged
    from server.history.ledger import Ruling

_PLACES = ("round", "site", "from", "to")
_FIGURES = ("cos own", "other", "norm", "peers", "usual", "d from", "d to")

_WIDTH = 160


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "moves",
        help="list the sites that changed groups, with the evidence",
        description="Lists every site that was examined: those that moved, and those that stayed (to: stays). "
        "cos: cosine of the site's update with its own group's direction, and the largest with another group's. "
        "norm: length of its update, beside the median of its peers' and the usual of its own calm rounds. "
        "d: distance of its fresh signature from the group it was in and to the one it belongs to. "
        "reason: why the method's own rule regrouped it, or it chose another group (CFL, IFCA).",
    )
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory, finished or still growing")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the ledger."""
    # Imported late: the types of events come with libraries that other commands do without.
    from server.history.ledger import rulings

    entries = [(entry, ruling) for entry in _log(options.directory) for ruling in rulings([entry.event])]
    if options.json:
        for entry, ruling in entries:
            print(json.dumps(_json(entry, ruling)))
        return 0
    # In a file or a pipe nothing is cut off.
    console = Console(width=None if sys.stdout.isatty() else max(_WIDTH, Console().width))
    if not entries:
        console.print("No site was moved or examined.")
        return 0
    table = Table(box=None)
    # A run has moves of one kind, seldom of both; columns without anything in them are not shown.
    reasons = [ruling.evidence.reason for _, ruling in entries]
    figures, named = () if all(reasons) else _FIGURES, ("reason",) if any(reasons) else ()
    for title in (*_PLACES, *figures, *named):
        table.add_column(title, no_wrap=title not in ("site", "reason"), overflow="fold")
    for _, ruling in entries:
        reason = ruling.evidence.reason
        row = _places(ruling)
        row += ([""] * len(figures) if reason else _figures(ruling)) if figures else []
        table.add_row(*row, *([reason] if named else []))
    console.print(table, markup=False)
    return 0


def _log(directory: Path) -> tuple[Logged, ...]:
    from server.history.event_log import read_events

    try:
        log = read_events(directory)
    except OSError as error:
        raise SettingsError(f"cannot read {error.filename}: {error.strerror}; RUN is the directory of a run") from None
    if log.unreadable:
        print(f"{log.unreadable} lines of the log could not be understood and are left out.", file=sys.stderr)
    return log.entries


def _json(entry: Logged, ruling: Ruling) -> dict[str, Any]:
    """A move or an acquittal for other programs; the names tell a move by examination from one for a reason."""
    from server.history.ledger import evidence_entry

    kind = "SiteCleared" if ruling.stays else "SitesRegrouped" if ruling.evidence.reason else "SiteMoved"
    where = (
        {"group": ruling.origin}
        if ruling.stays
        else {"origin": ruling.origin, "target": ruling.target, "founded": ruling.founded}
    )
    told = {"time": entry.time, "event": kind, "round_number": ruling.round_number, "site": ruling.site}
    return {**told, **where, "evidence": evidence_entry(ruling.evidence)}


def _places(ruling: Ruling) -> list[str]:
    return [
        str(ruling.round_number),
        ruling.site,
        str(ruling.origin),
        "stays" if ruling.stays else f"{ruling.target}{' (new)' if ruling.founded else ''}",
    ]


def _figures(ruling: Ruling) -> list[str]:
    evidence = ruling.evidence
    return [
        _number(evidence.cosine, ".2f"),
        _number(max(evidence.cosines.values(), default=None), ".2f"),
        *(_number(value, ".2g") for value in (evidence.norm, evidence.peer_norm, evidence.usual_norm)),
        _number(evidence.distances.get(ruling.origin), ".2g"),
        "" if ruling.stays else _number(evidence.distances.get(ruling.target), ".2g"),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
