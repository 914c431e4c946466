"""`coterie init`: look at data, and write a configuration that works for them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers
from common.config import SettingsError

if TYPE_CHECKING:
    from cli.start.inventory import Inventory


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "init",
        help="look at data, and write a configuration to begin with",
        description="Looks at a folder with a sub-folder for each class, a folder of such folders for each site, a "
        "manifest (path,label), an .npz or a table; a column or array `site` says whose each sample is. Writes a "
        "commented configuration that learns something in minutes, and says what it found, what to expect in time and "
        "bytes, and the next commands. Nothing is trained, and no file is overwritten.",
    )
    parser.add_argument("data", type=Path, help="folder, .csv, .npz or .parquet")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--simulate", action="store_true", help="for a simulation on this machine (default)")
    what.add_argument("--federation", action="store_true", help="for sites on separate machines with data like these")
    parser.add_argument("--sites", type=int, default=0, help="sites to simulate, if the data do not say whose they are")
    parser.add_argument("--out", type=Path, default=Path("run.toml"), help="file to write; default: run.toml")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look, write and tell."""
    if options.out.exists():
        raise SettingsError(f"{options.out} is there already: remove it, or choose another name with --out")
    if options.sites < 0 or options.sites == 1:
        raise SettingsError(f"--sites {options.sites}: a federation has at least two sites")
    from cli.start.inventory import take
    from cli.start.recommendation import configuration, expected, recommend
    from cli.toml_text import schema_toml

    found = take(options.data)
    print(_found(found), flush=True)
    schema = options.out.absolute().with_name(f"{options.out.stem}-schema.toml")
    if found.table is not None:
        if schema.exists():
            raise SettingsError(f"{schema} is there already: remove it, or choose another name with --out")
        schema.write_text(schema_toml(found.table), encoding="utf-8")
    chosen = recommend(found, options.sites, schema)
    options.out.write_text(configuration(chosen, federation=options.federation), encoding="utf-8")
    print(f"wrote {options.out}" + (f" and {schema}: all sites must agree on it" if found.table is not None else ""))
    print("to expect:", *(f"  {line}" for line in expected(chosen)), sep="\n")
    print("next:", *(f"  {line}" for line in _next(options.out, federation=options.federation)), sep="\n")
    return 0


def _found(found: Inventory) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in zip(found.classes, found.counts, strict=True))
    what = "rows" if found.table is not None else "images"
    lines = [f"found a {found.kind} with {found.samples} {what} in {len(found.classes)} classes: {counts}"]
    if found.side:
        lines.append(f"  {'grey' if found.grey else 'colour'} images, {found.side} pixels on their shorter side")
    if found.table is not None:
        lines.append(f"  {len(found.table.columns)} columns; the class is in {found.table.label!r}")
    if found.sites:
        sizes = ", ".join(f"{name} {count}" for name, count in list(found.sites.items())[:12])
        lines.append(f"  of {len(found.sites)} sites: {sizes}{', …' * (len(found.sites) > 12)}")
    if found.groups:
        lines.append(f"  {found.groups} groups (patients), which are never divided")
    if found.faults:
        lines.append(f"  {found.faults} files or columns cannot be used as they are; the run's log names them")
    if min(found.counts) == 0:
        lines.append("  a class has no sample that can be used")
    return "\n".join(lines)


def _next(out: Path, *, federation: bool) -> list[str]:
    if federation:
        steps = {
            "coterie provision fed --server HOST --sites NAME,NAME": "once: certificates, keys, a kit for each site",
            "coterie server fed/server/server.toml": "at the coordinator",
            f"coterie site check site.toml {out} --call": "at each site, with `data` set in site.toml",
            "coterie site site.toml": "at each site",
            f"coterie run {out} --on fed": "at the coordinator",
        }
    else:
        steps = {
            f"coterie preview {out}": "who would train with whom; seconds",
            f"coterie simulate {out}": "the run, and its page",
            f"coterie simulate {out} --set method=local": "each site alone, to see whether joining pays",
            "coterie runs": "what has run",
        }
    width = max(map(len, steps))
    return [f"{command:{width}}   # {what}" for command, what in steps.items()]
