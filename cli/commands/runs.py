"""`coterie runs`, `follow` and `stop`: what has run, what is running, and ending it."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import Subparsers

_RUN = "number of the run, the end of it, its run directory, or `last` (default)"


def register(jobs: Subparsers) -> None:
    """Add the three sub-commands."""
    runs = jobs.add_parser(
        "runs",
        help="list runs: those in a folder, or those of a federation's server",
        description="Lists run directories, the latest first: method, state, rounds, accuracy. `cut off` is a run that "
        "ended without a word, for instance because its machine did; --resume goes on with it. With --on the runs that "
        "the server has, with the numbers that `coterie follow` and `coterie stop` take.",
    )
    runs.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="where to look; default: runs")
    _add_server(runs, required=False)
    runs.set_defaults(run=list_runs)
    follow = jobs.add_parser(
        "follow",
        help="show the log of a run of a federation, from its beginning to its end",
        description="Shows what `coterie run` shows. Ctrl-C ends the showing, not the run. The exit code is 0 if the "
        "run finished.",
    )
    stop = jobs.add_parser(
        "stop",
        help="end a run of a federation in good order",
        description="Ends a run: sites get no more work, and the run directory is completed. The same `coterie run` "
        "with --resume --out goes on after the last complete round.",
    )
    for parser, job in ((follow, follow_run), (stop, stop_run)):
        parser.add_argument("which", nargs="?", default="last", metavar="RUN", help=_RUN)
        _add_server(parser, required=True)
        parser.set_defaults(run=job)


def _add_server(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--on", type=Path, required=required, metavar="FOLDER", help="folder of `coterie provision`")
    parser.add_argument("--insecure", action="store_true", help="the server was started with --insecure")


def list_runs(options: argparse.Namespace) -> int:
    """Print one line per run."""
    from cli.operating.columns import ago, columns, local_time

    if options.on is None:
        from cli.operating.local_runs import local_runs

        found = local_runs(options.folder)
        rows = [
            [str(one.directory), one.method, one.state, f"{one.rounds}/{one.planned}",
             "–" if one.accuracy is None else f"{one.accuracy:.3f}", one.started]
            for one in found
        ]  # fmt: skip
        print(columns(("run directory", "method", "state", "rounds", "accuracy", "started"), rows))
        if any(one.state not in ("finished", "running") and one.resumable for one in found):
            print("go on with one that did not finish: the command that started it, with --resume --out DIRECTORY")
        return 0
    from cli.deployment.federation import connection_to, speaking_to

    with speaking_to(connection_to(options.on, insecure=options.insecure)) as superlink:
        rows = [
            [str(one.number), one.text("method"), one.state, local_time(one.started),
             "–" if not one.has_ended else local_time(one.ended), one.text("out")]
            for one in superlink.runs()
        ]  # fmt: skip
        running = [one for one in superlink.runs() if not one.has_ended]
    print(columns(("run", "method", "state", "sent", "ended", "run directory"), rows))
    for one in running:
        print(f"run {one.number} was sent {ago(one.started)} ago: `coterie follow {one.number} --on {options.on}`")
    return 0


def follow_run(options: argparse.Namespace) -> int:
    """Show a run's log."""
    from cli.deployment.federation import connection_to, named, speaking_to
    from cli.deployment.submission import follow

    with speaking_to(connection_to(options.on, insecure=options.insecure)) as superlink:
        run = named(superlink.runs(), options.which)
    return follow(options.on, run.number, insecure=options.insecure)


def stop_run(options: argparse.Namespace) -> int:
    """End a run."""
    from cli.deployment.federation import connection_to, named, speaking_to, under_way

    with speaking_to(connection_to(options.on, insecure=options.insecure)) as superlink:
        # `last` is the latest that can be ended.
        known = under_way(superlink)[::-1] if options.which == "last" else superlink.runs()
        if not known:
            print("no run is under way")
            return 1
        run = named(known, options.which)
        if run.has_ended:
            print(f"run {run.number} has ended already: {run.state}")
            return 1
        if not superlink.stop(run.number):
            print(f"the server could not end run {run.number}")
            return 1
    print(f"run {run.number} is ended; its directory {run.text('out')} is complete within a minute")
    return 0
