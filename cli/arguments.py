"""Arguments that several jobs share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import Config, load, parse_override

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

# How a run ended, as a shell sees it; 130 is what Ctrl-C gives everywhere.
EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


def add_config(parser: argparse.ArgumentParser) -> None:
    """CONFIG.toml and --set."""
    parser.add_argument("config", type=Path, help="TOML file with the settings (see configs/ and `coterie config`)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. --set train.lr=0.1"
    )


def read_config(options: argparse.Namespace) -> Config:
    """Load the file and apply what the command line changes."""
    return load(options.config, dict(parse_override(text) for text in options.set))


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add what a model needs whose network is not Coterie's own."""
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="pretrained weights of a tuned backbone, if not as the card says"
    )
    parser.add_argument(
        "--trust-network",
        action="store_true",
        help="import the network of a model that was trained with train.model = python:…, from what is installed here",
    )
