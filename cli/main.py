"""`coterie`: one command for each job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cli.commands import (
    bench,
    collab,
    demo,
    doctor,
    export,
    init,
    methods,
    moves,
    predict,
    preview,
    provision,
    report,
    run,
    runs,
    schema,
    server,
    settings,
    simulate,
    site,
    status,
    watch,
)
from cli.deployment.proxy import for_programs
from common.config import SettingsError
from common.foreign import Unusable
from common.release import VERSION

_PIPE_CLOSED = 128 + 13  # as a shell tells of SIGPIPE


def command_line() -> argparse.ArgumentParser:
    """All commands, with what they take."""
    parser = argparse.ArgumentParser(prog="coterie", description="Clustered federated learning that deploys.")
    parser.add_argument("--version", action="version", version=f"Coterie {VERSION}")
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for module in (
        init, simulate, demo, bench, preview, report, watch, moves, provision, server, site, run, runs, status,
        doctor, predict, export,
        schema, collab, methods, settings,
    ):  # fmt: skip
        module.register(jobs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the chosen job; return the exit code."""
    options = command_line().parse_args(arguments)
    # Before anything calls anybody: this machine's own programs are not to be asked through a web proxy.
    os.environ.update(for_programs(os.environ))
    try:
        return int(options.run(options))
    except (SettingsError, Unusable) as error:
        print(f"coterie: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `head` has; Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
