"""`coterie bench`: methods × data sets × settings × seeds, and the tables and curves that come out."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from cli.arguments import Subparsers
from cli.suites.running import Progress, SuiteRunner, check_cells, on_federation, simulated
from cli.suites.suite import Cell, cells, read_suite, trials
from common.classes import agreed_classes
from common.config import parse_override
from common.lock import alone
from common.readable import duration

_SIGN_OF_LIFE = 60.0  # seconds
_INTERRUPTED = 130


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "bench",
        help="compare methods over seeds and data sets",
        description="Runs every method of a suite on the same partitions and initial weights, each run in its own "
        "directory under --out, and writes results.csv, table.md, table.tex, table.html and curves. A suite that "
        "was interrupted goes on where it ended; a run that failed is named and tried again next time.",
    )
    parser.add_argument("suite", type=Path, metavar="SUITE.toml", help="see configs/suites")
    parser.add_argument("--out", type=Path, required=True, help="folder of the suite's runs and results")
    parser.add_argument("--jobs", type=int, default=0, help="runs at the same time; default: one per core")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of all runs, e.g. data.path=…"
    )
    parser.add_argument(
        "--on",
        type=Path,
        metavar="FOLDER",
        help="run on the sites of a federation (folder of `coterie provision`, on the server's machine), one run after "
        "another; what sites hold is theirs, and partitions of the suite are of no account",
    )
    parser.add_argument("--tables", action="store_true", help="run nothing: write the tables of what is there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry the suite out; return 1 if a run failed, 130 if it was interrupted."""
    suite = read_suite(options.suite)
    out = options.out.absolute()
    overrides = dict(parse_override(text) for text in options.set)
    if options.on is not None:
        overrides = {"sites": _sites_of(options.on)} | overrides
    # Imported late: torch and the plots take seconds, which `--help` and a mistake in the suite need not wait for.
    from cli.suites.choosing import choose
    from cli.suites.preparation import prepare_cells
    from cli.suites.report import write_results

    console = Console()

    def ready(planned: Iterable[Cell]) -> list[Cell]:
        if options.on is not None:
            # The data are at the sites: all that can be done here is to see that a class list was agreed upon.
            prepared = list(planned)
            for cell in prepared:
                agreed_classes(cell.config.data)
        else:
            prepared = prepare_cells(
                list(planned), embed=not options.tables, say=lambda text: console.print(text, style="dim")
            )
        check_cells(prepared)
        return prepared

    def plan() -> list[Cell]:
        return ready(cells(suite, options.suite.parent, overrides, out, choose(tried)))

    tried = ready(trials(suite, options.suite.parent, overrides, out))
    # Rows that wait for a choice are not among these; what is wrong with the others is said before anything runs.
    planned = plan()
    out.mkdir(parents=True, exist_ok=True)
    code = 0
    if not options.tables:
        # Sites of a federation have one run at a time.
        jobs = 1 if options.on is not None else options.jobs or os.cpu_count() or 1
        command = simulated if options.on is None else on_federation(options.on.absolute())
        # Also where the shell has Ctrl-C ignored, as in scripts, and for a polite kill.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        with alone(out / ".lock", str(out)) as lock:
            if tried:
                code = _carry_out(tried, lock, jobs, console, command)
            if code != _INTERRUPTED:
                planned = plan()
                code = max(code, _carry_out(planned, lock, jobs, console, command))
    text, drawn = write_results(suite, planned, out)
    print(text)
    if not drawn:
        print("\nNo curves: matplotlib is not installed (pip install 'coterie[bench]').", file=sys.stderr)
    console.print(f"\nResults: {out}/table.html", soft_wrap=True)
    return code


def _sites_of(folder: Path) -> int:
    """How many sites a federation has, or raise if its server does not answer from here."""
    from cli.deployment.federation import connection_to, speaking_to

    with speaking_to(connection_to(folder)) as superlink:
        return max(sum(not site.is_out for site in superlink.sites().values()), 1)


def _carry_out(
    planned: Sequence[Cell], lock: int, jobs: int, console: Console, command: Callable[[Path], Sequence[str]]
) -> int:
    """Carry out runs; return 1 if one failed, 130 if they were interrupted."""
    with _Display(console, planned) as display:
        try:
            return 1 if SuiteRunner(jobs, lock, display.say, display.show, command).run(planned) else 0
        except KeyboardInterrupt:
            left = "" if command is simulated else "; `coterie stop --on …` ends the run that is under way"
            display.say(f"interrupted{left}; the same command goes on from here")
            return _INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Display:
    """A bar with the time left in a terminal, lines elsewhere."""

    def __init__(self, console: Console, planned: Sequence[Cell]) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.fields[runs]} runs"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[left]}"), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=1.0, runs=f"0/{len(planned)}", left="")
        self._last = time.monotonic()

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Tell of one thing."""
        self._console.print(text, markup=False, soft_wrap=True)
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Show how far the suite is."""
        left = "" if progress.left is None else f"{duration(progress.left)} left"
        runs = f"{progress.done}/{progress.total}"
        self._bar.update(self._task, completed=progress.share, runs=runs, left=left)
        if not self._console.is_terminal and time.monotonic() - self._last > _SIGN_OF_LIFE:
            self.say(f"  {runs} runs, {progress.share:.0%} of the rounds{', ' + left if left else ''}")
