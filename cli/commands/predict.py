"""`coterie predict`: classify images or rows of a table with a model that a run left behind."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers, add_network_options
from common.config import SettingsError

if TYPE_CHECKING:
    from client.data.samples import ImageSamples, TableSamples
    from common.kept_model import ModelCard


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


def opened(card: ModelCard, paths: list[Path]) -> list[tuple[str, ImageSamples | TableSamples]]:
    """The samples to classify, and what stands in front of their names; what is wrong with them is told."""
    found: list[tuple[str, ImageSamples | TableSamples]] = list(_sources(card, paths))
    if not any(len(samples) for _, samples in found):
        what = "image" if card.table is None else "row"
        raise SettingsError(f"no {what} in {', '.join(map(str, paths))}")
    return found


def _sources(card: ModelCard, paths: list[Path]) -> Iterator[tuple[str, ImageSamples | TableSamples]]:
    from client.data.files import read_images
    from client.data.tables import read_rows

    if card.table is None:
        images = read_images(paths)
        for fault in images.faults:
            print(f"skipped {fault.name}: {fault.reason}", file=sys.stderr)
        yield "", images
        return
    for path in paths:
        rows = read_rows(path, card.table)
        for fault in rows.faults:
            print(f"{path}: {fault.name}: {fault.reason}", file=sys.stderr)
        yield f"{path}: ", rows
