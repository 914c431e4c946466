"""`coterie preview`: who would train with whom, found out before anything is trained."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cli.arguments import EXIT_CODES, Subparsers, add_config, read_config
from common.config import Config, SettingsError


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "preview",
        help="group the sites without training, and show how sure that is",
        description="Asks every site for its signature, groups the sites and makes the page for that part: what K "
        "would be chosen, how stable it is, which sites are hard to place, and whether groups are worth it at all. "
        "Nothing is trained: a site sends one small message.",
    )
    add_config(parser)
    parser.add_argument("--out", help="run directory; default runs/<time>-<method>-seed<seed>")
    parser.add_argument(
        "--on", type=Path, metavar="FOLDER", help="folder of a federation of separate machines; default: simulated"
    )
    parser.add_argument("--jobs", type=int, default=0, help="sites that work at the same time; default: one per core")
    parser.add_argument("--insecure", action="store_true", help="with --on: without TLS, as `coterie run` has it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Group the sites, and say in words what came out."""
    options.set.append("rounds=0")
    config = read_config(options)
    _require_distances(config)
    if options.on:
        from cli.deployment.submission import submit

        return submit(config, options.on, out=options.out, insecure=options.insecure)
    if options.out:
        config = config.model_copy(update={"out": str(Path(options.out).absolute())})
    from cli.simulation.preflight import prepare

    config = prepare(config)
    print(f"starting {config.sites} simulated sites …", file=sys.stderr, flush=True)
    from cli.simulation.engine import simulate
    from server.history.run_directory import default_directory

    out = Path(config.out).expanduser() if config.out else default_directory(config)
    outcome = simulate(config.model_copy(update={"out": str(out.absolute())}), jobs=options.jobs)
    if outcome == "finished":
        _tell(out)
    return EXIT_CODES[outcome]


def _require_distances(config: Config) -> None:
    """Raise for a method that does not compare the sites: there would be nothing to see."""
    from server.methods import METHODS, get_method

    if get_method(config.method).distance is None:
        able = ", ".join(name for name, method in METHODS.items() if method.distance is not None)
        raise SettingsError(
            f"method = {config.method!r} does not compare the sites, so there is nothing to preview: "
            f"it takes one of {able}"
        )


def _tell(directory: Path) -> None:
    """Print what the page says in words."""
    from server.history.run_directory import REPORT
    from server.report.difference_words import difference_words
    from server.report.grouping_words import choice_of_k, doubtful, verdict
    from server.report.record import read_run
    from server.report.study import study

    record = read_run(directory)
    looked = study(record)
    judged = verdict(record, looked)
    if looked is not None and judged is not None:
        print(f"\nAre groups worth it? {judged.words}")
        print(f"How many? {choice_of_k(record, looked)}")
        print(f"Doubtful sites? {doubtful(record, looked)}")
    if record.differences:
        print(f"What differs between the groups? {difference_words(record.differences)}")
    print(f"The page: {(directory / REPORT).absolute()}")
