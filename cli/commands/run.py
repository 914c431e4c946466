"""`coterie run`: start a run on a federation of separate machines, and follow it."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import Subparsers, add_config, read_config


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "run",
        help="start a run on a federation of separate machines",
        description="Sends the app and its settings to the running server and shows the run's log until it ends. "
        "Ctrl-C ends the showing, not the run: `coterie follow` shows it again, `coterie stop` ends it, `coterie runs` "
        "lists all. The exit code is 0 if the run finished.",
    )
    add_config(parser)
    parser.add_argument("--on", type=Path, required=True, metavar="FOLDER", help="folder of `coterie provision`")
    parser.add_argument("--out", help="run directory on the server; default FOLDER/runs/<time>-<method>-seed<seed>")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if it ended too early")
    parser.add_argument(
        "--queue", action="store_true", help="wait until the runs that were sent to this server before have ended"
    )
    parser.add_argument("--insecure", action="store_true", help="the server was started with --insecure")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Submit the run; return 0 if it finished."""
    from cli.deployment.submission import submit

    options.set += ["queue=true"] if options.queue else []
    return submit(read_config(options), options.on, out=options.out, resume=options.resume, insecure=options.insecure)
