"""`coterie watch`: a growing run in the browser, on this machine alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import Subparsers
from common.config import SettingsError

_PORT = 8642


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "watch",
        help="show a run in the browser while it grows",
        description="Serves the page of a run on 127.0.0.1, read only, and keeps it up to date as rounds finish. It "
        "reads the run directory and never slows the run; it goes on when the run is restarted. Ctrl-C ends it.",
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directory, and others to compare it with"
    )
    parser.add_argument("--port", type=int, default=_PORT, help=f"default {_PORT}; 0: any free one")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from server.report.live import HOST, LiveRun, serve

    if not options.runs[0].is_dir():
        raise SettingsError(f"{options.runs[0]} is not a directory: RUN is the directory of a run")
    try:
        server = serve(LiveRun(options.runs), options.port)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"port {options.port} cannot be used: {error}; choose another with --port") from None
    print(f"watching {options.runs[0].absolute()} at http://{HOST}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0
