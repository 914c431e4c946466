"""`coterie export`: a trained model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import Subparsers, add_network_options


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "export",
        help="write a trained model as ONNX, or as a folder for the Hugging Face Hub",
        description="--onnx: of images, with the preprocessing inside: uint8 pixels [n, size, size, channels] in, "
        "probabilities [n, classes] out. Of tables: float32 rows [n, m] in, scaled as the card says. Class names and "
        "the card are in its metadata. Needs coterie[onnx]. --hub: a folder with the weights, the card as "
        "config.json, and a model card as the Hub has it: training, results beside the baseline, limits.",
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="model.safetensors of a site, or models/group-<k>.safetensors of a run",
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--onnx", action="store_true", help="an ONNX file")
    kind.add_argument("--hub", action="store_true", help="a folder in the layout of the Hugging Face Hub")
    parser.add_argument(
        "--shares",
        default="own",
        metavar="own|uniform|FILE",
        help="class shares where the model is used: those it carries (default), equal ones, or a TOML file with "
        "CLASS = NUMBER for each class",
    )
    parser.add_argument("--out", type=Path, help="file or folder to write; default MODEL with the ending .onnx or -hub")
    add_network_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export and say where it is."""
    if options.hub:
        from cli.hub import READ_ME, public, write_folder
        from common.kept_model import load_model

        state, card = load_model(options.model)
        out = options.out or options.model.with_name(f"{options.model.stem}-hub")
        folder = write_folder(state, public(card), out)
        print(f"{folder}: {READ_ME} is the model card; add a licence to it before you publish the folder")
        return 0
    from client.onnx_export import export_onnx, onnx_input
    from client.prediction import open_model

    model, card = open_model(options.model, options.shares, options.weights, trusted=options.trust_network)
    out = options.out or options.model.with_suffix(".onnx")
    export_onnx(model, card, out)
    name, example = onnx_input(card)
    kind = f"{str(example.dtype).removeprefix('torch.')}[n, {', '.join(map(str, example.shape[1:]))}]"
    print(f"{out}: {name} {kind} → probabilities of {', '.join(card.classes)}")
    if card.note:
        print(f"note: {card.note}")
    return 0
