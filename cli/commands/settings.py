"""`coterie config`: every setting with its default and help."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.arguments import Subparsers
from cli.toml_text import settings_toml, toml_value
from common.config import Config, allowed, fields, flat_values, load


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser("config", help="list every setting, or check a configuration file")
    parser.add_argument("config", type=Path, nargs="?", help="TOML file to check and show in full")
    parser.add_argument("--toml", action="store_true", help="print as the [tool.flwr.app.config] table of a Flower app")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the settings."""
    config = load(options.config) if options.config else Config()
    if options.toml:
        print(settings_toml(config))
        return 0
    # Imported late: it brings NumPy and more, which every other command would pay for.
    from server.methods import METHODS, RULES

    console = Console()
    table = Table(box=None)
    table.add_column("setting", no_wrap=True)
    table.add_column("value" if options.config else "default", overflow="fold", max_width=24)
    table.add_column("allowed", max_width=30)
    table.add_column("meaning")
    values = flat_values(config)
    known = {"method": METHODS, "train.rule": RULES}
    for key, field in fields():
        takes = f"one of {', '.join(known[key])}" if key in known else allowed(field)
        table.add_row(key, toml_value(values[key]), takes, field.description or "", style=None)
    console.print(table, markup=False)
    return 0
