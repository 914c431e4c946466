"""`coterie predict`: classify images or rows of a table with a model that a run left behind."""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers, add_network_options

if TYPE_CHECKING:
    from common.kept_model import ModelCard


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "predict",
        help="classify images or rows of a table with a trained model",
        description="Prints the most likely class of every image or row and its probability. Both are prepared just as "
        "they were for the site's own test; the model's card says how. A table needs no column of labels. Unreadable "
        "files and missing values are named on standard error, and so is how often each class was found. A model that "
        "is no better than always naming the most frequent class is warned of there. The exit code is 1 if nothing "
        "could be classified.",
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
    parser.add_argument(
        "--id", default="", metavar="COLUMN", help="tables: column that names a row; default: the line in the file"
    )
    parser.add_argument("--csv", action="store_true", help="print CSV with the probability of every class")
    add_network_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Classify and print."""
    from rich.console import Console
    from rich.progress import track

    from cli.to_classify import NothingToClassify, opened
    from client.data.samples import Fault
    from client.prediction import open_model, predict

    model, card = open_model(options.model, options.shares, options.weights, trusted=options.trust_network)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.csv:
        what = "image" if card.table is None else "row"
        writer.writerow([what, "class", "probability", *(f"p({name})" for name in card.classes)])
    try:
        sources = opened(card, options.samples, options.id)
    except NothingToClassify as error:
        print(f"coterie: {error}", file=sys.stderr)
        return 1
    _warn(card)
    found: Counter[int] = Counter()
    console = Console(stderr=True)
    for prefix, samples in sources:
        outcomes = predict(model, card, samples)
        shown = track(
            outcomes, "classifying", len(samples), console=console, transient=True, disable=not console.is_terminal
        )
        for outcome in shown:
            if isinstance(outcome, Fault):
                print(f"skipped {outcome.name}: {outcome.reason}", file=sys.stderr)
                continue
            found[outcome.label] += 1
            chances = outcome.probabilities.tolist()
            sample, name = prefix + outcome.name, card.classes[outcome.label]
            if options.csv:
                writer.writerow([sample, name, f"{max(chances):.6f}", *(f"{chance:.6f}" for chance in chances)])
            else:
                print(f"{sample}\t{name}\t{max(chances):.3f}")
    if found:
        told = ", ".join(f"{card.classes[label]} {times}" for label, times in found.most_common())
        print(f"{found.total()} classified: {told}", file=sys.stderr)
    return 0 if found else 1


def _warn(card: ModelCard) -> None:
    """Say it of a model that has learnt no more than which class is frequent."""
    beside = None if card.test is None else card.test.beside_naming
    if beside is not None and beside.verdict != "better":
        counts = ", ".join(f"{name} {count}" for name, count in zip(card.classes, card.trained_on, strict=False))
        of = f"; the site trained on {counts}" if counts else ""
        print(f"WARNING: do not rely on this model: {beside.words}{of}", file=sys.stderr)
