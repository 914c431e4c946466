"""`coterie demo`: FMCL, FedAvg and Local on the same 20 sites, side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.arguments import EXIT_CODES, Subparsers
from common.config import load
from common.foreign import read_json

CONFIG = Path(__file__).parents[2] / "configs" / "demo.toml"
# A choice of groups is for methods that form some.
METHODS: dict[str, dict[str, str]] = {
    "fmcl": {},
    "fedavg": {"cluster.choice": "silhouette"},
    "local": {"cluster.choice": "silhouette"},
}


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser("demo", help="compare FMCL, FedAvg and Local on handwritten digits", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the three run directories; default runs/<time>-demo")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data partition and the training (default 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the three methods and print the table."""
    print("starting 20 simulated sites …", file=sys.stderr, flush=True)
    from cli.simulation.engine import simulate
    from cli.simulation.preflight import prepare
    from server.history.run_directory import REPORT, SUMMARY, stamped, write_text
    from server.methods import METHODS as REGISTRY
    from server.report import page, read_run

    out = (options.out or Path("runs") / stamped("demo")).absolute()
    table = Table("method", "groups", "accuracy", "macro-F1", "AUC", "mean of sites", "worst tenth", "seconds")
    for method, changes in METHODS.items():
        config = load(CONFIG, {"method": method, "seed": options.seed, "out": str(out / method), **changes})
        if (outcome := simulate(prepare(config))) != "finished":
            return EXIT_CODES[outcome]
        summary = read_json(out / method / SUMMARY)
        final = summary["final"]
        figures = (final["accuracy"], final["macro_f1"], final["auc"])
        spread = (summary["mean_site_accuracy"], summary["worst_tenth_accuracy"])
        cells = [f"{value:.3f}" for value in (*figures, *spread)]
        table.add_row(REGISTRY[method].title, str(summary["k"]), *cells, f"{summary['seconds']['total']:.0f}")
    console = Console()
    console.print(f"\nTest accuracy after the last round, pooled over {config.sites} sites, seed {options.seed}:")
    console.print(table)
    write_text(out / REPORT, page([read_run(out / method) for method in METHODS]))
    console.print(f"Run directories: {out}\nThe three side by side, as a page: {out / REPORT}", soft_wrap=True)
    return 0
