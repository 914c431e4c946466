"""`coterie predict`: classify images with a model that a run left behind."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from cli.arguments import Subparsers
from common.config import SettingsError


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "predict",
        help="classify images with a trained model",
        description="Prints the most likely class of every image and its probability. Images are prepared exactly as "
        "they were for the site's own test; the model's card says how. Unreadable files are named on standard error. "
        "The exit code is 1 if no image could be classified.",
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="model.safetensors of a site, or models/group-<k>.safetensors of a run",
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGES", help="image files, or folders of images")
    parser.add_argument("--csv", action="store_true", help="print CSV with the probability of every class")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Classify and print."""
    from rich.console import Console
    from rich.progress import track

    from client.data.files import read_images
    from client.data.samples import Fault
    from client.prediction import open_model, predict

    model, card = open_model(options.model)
    samples = read_images(options.images)
    for fault in samples.faults:
        print(f"skipped {fault.name}: {fault.reason}", file=sys.stderr)
    if not len(samples):
        raise SettingsError(f"no image in {', '.join(map(str, options.images))}")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.csv:
        writer.writerow(["image", "class", "probability", *(f"p({name})" for name in card.classes)])
    classified = 0
    outcomes = predict(model, card, samples)
    console = Console(stderr=True)
    shown = track(
        outcomes, "classifying", len(samples), console=console, transient=True, disable=not console.is_terminal
    )
    for outcome in shown:
        if isinstance(outcome, Fault):
            print(f"skipped {outcome.name}: {outcome.reason}", file=sys.stderr)
            continue
        classified += 1
        chances = outcome.probabilities.tolist()
        name = card.classes[outcome.label]
        if options.csv:
            writer.writerow([outcome.image, name, f"{max(chances):.6f}", *(f"{chance:.6f}" for chance in chances)])
        else:
            print(f"{outcome.image}\t{name}\t{max(chances):.3f}")
    return 0 if classified else 1
