"""`coterie schema`: draft the schema of a table, for all sites to agree on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cli.arguments import Subparsers
from cli.toml_text import schema_toml
from common.config import SettingsError

_LABELS = ("class", "label", "target", "y")


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "schema",
        help="draft the schema of a table",
        description="Reads a CSV or Parquet file whose summary may be shared, and writes what all sites must "
        "agree on: names, ranges or categories, means and spreads. The draft tells about the file it is "
        "made from: look at it before you pass it on. Use it as data.table in the configuration of a run.",
    )
    parser.add_argument("file", type=Path, help=".csv with a header, or .parquet")
    parser.add_argument("--label", default="", help=f"column of the class; default: {', '.join(_LABELS)} or the last")
    parser.add_argument("--group", default="", help="column of what must stay together, such as the patient")
    parser.add_argument("--split", default="", help="column that says train or test")
    parser.add_argument("--drop", default="", metavar="A,B", help="columns to leave out")
    parser.add_argument(
        "--correlations",
        action="store_true",
        help="write the correlations, too: dc-cfl's anchors then look more like rows, and a curious server reads more",
    )
    parser.add_argument("--out", type=Path, help="TOML file to write; default: print it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draft and write."""
    from client.data.draft import draft_schema
    from client.data.tables import read_columns

    cells = read_columns(options.file)
    label = options.label or next((name for name in _LABELS if name in cells), list(cells)[-1] if cells else "")
    drop = [name.strip() for name in options.drop.split(",") if name.strip()]
    table = draft_schema(cells, label, group=options.group, split=options.split, drop=drop)
    if not options.correlations:
        table = table.model_copy(update={"correlations": ()})
    text = schema_toml(table)
    if options.out is None:
        print(text, end="")
        return 0
    if options.out.exists():
        raise SettingsError(f"{options.out} is there already: remove it or choose another name")
    options.out.write_text(text, encoding="utf-8")
    print(f"{options.out}: {len(table.columns)} columns, {len(table.classes)} classes", file=sys.stderr)
    return 0
