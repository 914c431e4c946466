"""`coterie moves`: which sites changed groups, when, and on what evidence."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.arguments import Subparsers
from common.config import SettingsError
from server import ledger
from server.run_directory import read_events

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
    entries = rulings(options.directory)
    if options.json:
        for entry in entries:
            print(json.dumps(entry))
        return 0
    # In a file or a pipe nothing is cut off.
    console = Console(width=None if sys.stdout.isatty() else max(_WIDTH, Console().width))
    if not entries:
        console.print("No site was moved or examined.")
        return 0
    table = Table(box=None)
    # A run has moves of one kind, seldom of both; columns without anything in them are not shown.
    reasons = [entry["evidence"].get("reason") for entry in entries]
    figures, named = _FIGURES if None in reasons else (), ("reason",) if any(reasons) else ()
    for title in (*_PLACES, *figures, *named):
        table.add_column(title, no_wrap=title not in ("site", "reason"), overflow="fold")
    for entry, reason in zip(entries, reasons, strict=True):
        row = _places(entry)
        row += (_figures(entry) if reason is None else [""] * len(figures)) if figures else []
        table.add_row(*row, *([reason or ""] if named else []))
    console.print(table, markup=False)
    return 0


def rulings(directory: Path) -> list[dict[str, Any]]:
    """Return the moves and acquittals of a run from its event log, in order."""
    try:
        events = read_events(directory)
    except OSError as error:
        raise SettingsError(f"cannot read {error.filename}: {error.strerror}; RUN is the directory of a run") from None
    return [entry for event in events for entry in ledger.rulings(event)]


def _places(entry: dict[str, Any]) -> list[str]:
    stays = entry["event"] == "SiteCleared"
    return [
        str(entry["round_number"]),
        entry["site"],
        str(entry["group"] if stays else entry["origin"]),
        "stays" if stays else f"{entry['target']}{' (new)' if entry['founded'] else ''}",
    ]


def _figures(entry: dict[str, Any]) -> list[str]:
    evidence = entry["evidence"]
    stays = entry["event"] == "SiteCleared"
    origin, target = (entry["group"], entry["group"]) if stays else (entry["origin"], entry["target"])
    distances = evidence["distances"]
    return [
        _number(evidence["cosine"], ".2f"),
        _number(max(evidence["cosines"].values(), default=None), ".2f"),
        *(_number(evidence[key], ".2g") for key in ("norm", "peer_norm", "usual_norm")),
        _number(distances.get(str(origin)), ".2g"),
        "" if stays else _number(distances.get(str(target)), ".2g"),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
