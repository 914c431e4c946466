"""`coterie simulate`: a whole federation on this machine, on Flower's simulation engine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cli.arguments import EXIT_CODES, Subparsers, add_config, read_config


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser("simulate", help="run a federation on this machine", description=__doc__)
    add_config(parser)
    parser.add_argument("--out", help="run directory; default runs/<time>-<method>-seed<seed>")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if it ended too early")
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        help="sites that work at the same time in Flower's engine; 1: one process, without it, for it takes some "
        "25 s to start. Default: whichever is done sooner, from the time of a few batches: 1, or one per core",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Simulate one run."""
    # Imported late: torch, Ray and Flower take seconds, which `--help` and a mistyped setting need not wait for.
    config = read_config(options)
    if options.out:
        config = config.model_copy(update={"out": str(Path(options.out).absolute())})
    if options.resume:
        config = config.model_copy(update={"resume": "auto"})
    from cli.simulation.preflight import prepare

    config = prepare(config)
    print(f"starting {config.sites} simulated sites …", file=sys.stderr, flush=True)
    from cli.simulation.engine import simulate

    return EXIT_CODES[simulate(config, jobs=options.jobs)]
