"""`coterie report`: one page that shows a run, and others beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import Subparsers
from cli.pdf import print_pdf
from common.config import SettingsError
from common.readable import megabytes


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "report",
        help="make one page that shows a run, and others beside it",
        description="Builds a self-contained HTML page from run directories alone. The page is about the first RUN; "
        "the others are compared with it, and with a FedAvg run among them it names the sites that do worse than under "
        "FedAvg. Every run writes such a page about itself when it ends.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory, finished or still growing")
    parser.add_argument("--out", type=Path, help="file to write; default report.html in the first RUN")
    parser.add_argument(
        "--ledger",
        action="append",
        default=[],
        metavar="SITE=FILE",
        help="the ledger that a site keeps of itself, to stand beside what arrived from that site",
    )
    parser.add_argument("--pdf", action="store_true", help="print it as a PDF, too (needs Chromium)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    from cli.noted import noted_in
    from server.history.run_directory import REPORT, write_text
    from server.report import page, read_run

    out = options.out or options.runs[0] / REPORT
    records = [read_run(directory) for directory in options.runs]
    records[0].noted.update(noted_in(options.ledger, str(records[0].about.get("stamp", ""))))
    text = page(records)
    try:
        write_text(out, text)
    except OSError as error:
        raise SettingsError(f"cannot write {out}: {error.strerror}; name another file with --out") from None
    print(f"{out.absolute()} ({megabytes(len(text.encode()))})")
    if options.pdf:
        printed = out.with_suffix(".pdf")
        print_pdf(out, printed)
        print(f"{printed.absolute()} ({megabytes(printed.stat().st_size)})")
    return 0
