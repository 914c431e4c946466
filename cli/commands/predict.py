"""`coterie predict`: classify images or rows of a table with a model that a run left behind."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers, add_network_options

if TYPE_CHECKING:
    pass


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "predict",
        help="classify images or rows of a table with a trained model",
        description="Prints the most likely class of every image or row and its probability. Both are prepared just as "
        "they were for the site's own test; the model's card says how. A table needs no column of labels. Unreadable "
        "files and missing values are named on standard error. The exit code is 1 if nothing could be classified.",
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="model.safetensors of a site, or models/group-<k>.safetensors of a run",
    )
    parser.add_argument(
        "samples",
        type=Path,
        nargs="+",
        metavar="DATA",
        help="image files or folders of images; tables (.csv, .parquet) if the model reads tables",
    )
    parser.add_argument(
        "--shares",
        default="own",
        metavar="own|uniform|FILE",
        help="class shares where the model is used: those it carries (default), equal ones, or a TOML file with "
        "CLASS = NUMBER for each class",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV with the probability of every class")
    add_network_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Classify and print."""
    from rich.console import Console
    from rich.progress import track

    from cli.to_classify import opened
    from client.data.samples import Fault
    from client.prediction import open_model, predict

    model, card = open_model(options.model, options.shares, options.weights, trusted=options.trust_network)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.csv:
        what = "image" if card.table is None else "row"
        writer.writerow([what, "class", "probability", *(f"p({name})" for name in card.classes)])
    classified = 0
    console = Console(stderr=True)
    for prefix, samples in opened(card, options.samples):
        outcomes = predict(model, card, samples)
        shown = track(
            outcomes, "classifying", len(samples), console=console, transient=True, disable=not console.is_terminal
        )
        for outcome in shown:
            if isinstance(outcome, Fault):
                print(f"skipped {outcome.name}: {outcome.reason}", file=sys.stderr)
                continue
            classified += 1
            chances = outcome.probabilities.tolist()
            sample, name = prefix + outcome.name, card.classes[outcome.label]
            if options.csv:
                writer.writerow([sample, name, f"{max(chances):.6f}", *(f"{chance:.6f}" for chance in chances)])
            else:
                print(f"{sample}\t{name}\t{max(chances):.3f}")
    return 0 if classified else 1
