"""`coterie methods`: every method with its paper, what a site sends, and the settings it listens to."""

from __future__ import annotations

import argparse
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.arguments import Subparsers


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser("methods", help="list the methods that `method = …` takes", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/methods.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the registry."""
    # Imported late: NumPy, Flower and torch take seconds, which other jobs need not wait for.
    if options.markdown:
        from cli.method_page import as_markdown

        print(as_markdown())
        return 0
    from server.methods import METHODS

    table = Table("method", "what it does", "paper", box=None)
    for family, methods in groupby(METHODS.values(), key=lambda method: method.family):
        table.add_row(Text(family, style="bold"))
        for method in methods:
            table.add_row(f"  {method.name}", method.summary, method.paper)
    Console().print(table, markup=False)
    return 0
