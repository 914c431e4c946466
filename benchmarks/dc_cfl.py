"""DC-CFL on a table beside the paper's figures: `python -m benchmarks.dc_cfl FILE.csv --out DIR`.

FILE is UCI's Dry Bean data (13,611 rows, 16 columns, `class`). A few rows are set apart as public: the schema and the
interpolated anchors come from them alone, and no site holds them. The others are dealt out to 100 sites. Every cell is
a run as `coterie simulate --jobs 1` does it; what is in DIR already is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cli.simulation import preflight
from cli.simulation.engine import simulate
from cli.toml_text import schema_toml
from client.data.draft import draft_schema
from client.data.tables import read_columns
from common.config import parse
from server.history.event_log import read_events
from server.history.events import Solved

SITES, PUBLIC_ROWS = 100, 200
SCHEMES = {
    "C = 2": {"partition.scheme": "classes", "partition.classes_per_site": 2},
    "C = 3": {"partition.scheme": "classes", "partition.classes_per_site": 3},
    "Dir 0.1": {"partition.scheme": "dirichlet", "partition.alpha": 0.1},
}
SGD = {"train.model": "mlp", "train.lr": 0.01, "train.momentum": 0.5, "train.batch_size": 32}
MANY = {"rounds": 5, "train.epochs": 10, "checkpoint": 0}
ONE = {"train.epochs": 50}
METHODS = {
    "Local": {"method": "local", **MANY},
    "DC": {"method": "dc", **ONE},
    "FedAvg": {"method": "fedavg", **MANY},
    "FedProx": {"method": "fedprox", **MANY},
    "DC-CFL": {"method": "dc-cfl", **ONE},
}
PAPER = {
    "Local": (0.9805, 0.9452, 0.9288),
    "DC": (0.9156, 0.9136, 0.9090),
    "FedAvg": (0.3286, 0.5156, 0.3036),
    "FedProx": (0.3352, 0.5191, 0.3233),
    "DC-CFL": (0.9861, 0.9672, 0.9371),
}
# Of DC-CFL at C = 2 and C = 3: what anchors, averaging and noise cost.
VARIANTS: dict[str, dict[str, object]] = {
    "as above (anchors gaussian, correlated)": {},
    "anchors gaussian, independent": {"data.table": "independent"},
    "anchors uniform in the ranges": {"collaboration.anchors": "uniform"},
    "anchors interpolated between public rows": {"collaboration.anchors": "interpolated"},
    "rows averaged by 3": {"collaboration.aggregate": 3},
    "rows averaged by 5": {"collaboration.aggregate": 5},
    "noise 0.2": {"collaboration.noise": 0.2},
    "noise 0.5": {"collaboration.noise": 0.5},
    "noise 1": {"collaboration.noise": 1.0},
}


def prepare(file: Path, out: Path) -> None:
    """Set the public rows apart; draft the schema from them."""
    out.mkdir(parents=True, exist_ok=True)
    if (out / "schema.toml").exists():
        return
    cells = read_columns(file)
    count = len(next(iter(cells.values())))
    chosen = np.zeros(count, np.bool_)
    chosen[np.random.default_rng(0).permutation(count)[:PUBLIC_ROWS]] = True
    for name, rows in (("public.csv", np.flatnonzero(chosen)), ("sites.csv", np.flatnonzero(~chosen))):
        with (out / name).open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(cells)
            writer.writerows([column[row] for column in cells.values()] for row in rows)
    label = list(cells)[-1]
    public = {name: [column[row] for row in np.flatnonzero(chosen)] for name, column in cells.items()}
    schema = draft_schema(public, label)
    (out / "independent.toml").write_text(schema_toml(schema.model_copy(update={"correlations": ()})), encoding="utf-8")
    (out / "schema.toml").write_text(schema_toml(schema), encoding="utf-8")


def run(out: Path, scheme: str, seed: int, settings: dict[str, object]) -> dict[str, Any]:
    """Return the summary of a run, with its CPU seconds, data read and sites dealt out included."""
    values: dict[str, object] = {
        "sites": SITES,
        "seed": seed,
        "cache": str(out / "cache"),
        "data.source": "table",
        "data.path": str(out / "sites.csv"),
        "data.table": "schema",
        "collaboration.sample": str(out / "public.csv"),
        **SGD,
        **SCHEMES[scheme],
        **settings,
    }
    values["data.table"] = str(out / f"{values['data.table']}.toml")
    name = "-".join(
        f"{key.rpartition('.')[2]}={value}" for key, value in sorted(settings.items()) if key != "checkpoint"
    )
    folder = out / scheme.replace(" ", "") / f"{name}-seed{seed}"
    done = folder / "cpu.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        start = time.process_time()
        # One process for all sites: they are so small that an engine's messages take longer than their work.
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = simulate(preflight.prepare(parse({**values, "out": str(folder)})), jobs=1)
        if outcome != "finished":
            raise RuntimeError(f"{folder}: {outcome}")
        done.write_text(json.dumps(time.process_time() - start), encoding="utf-8")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if summary["left_out"]:
        raise RuntimeError(f"{folder}: {summary['left_out']} sites left out")
    solved = read_events(folder).of(Solved)
    return summary | {"cpu": json.loads(done.read_text()), "solved": solved[0] if solved else None}


def cell(runs: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation of the mean accuracy over sites."""
    values = [found["mean_site_accuracy"] for found in runs]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", action="store_true", help="also what anchors, averaging and noise cost")
    parser.add_argument("--plain", action="store_true", help="also the time of a plain NumPy/PyTorch script")
    options = parser.parse_args()
    out = options.out.absolute()
    prepare(options.file, out)
    seeds = range(options.seeds)
    print(f"Mean over {SITES} sites of the accuracy on their own test rows, seeds 0 to {options.seeds - 1}.\n")
    print("| method | " + " | ".join(f"{scheme} | paper" for scheme in SCHEMES) + " |")
    print("|---|" + "---:|---:|" * len(SCHEMES))
    chosen: list[str] = []
    seconds: list[str] = []
    for method, settings in METHODS.items():
        cells = []
        for scheme, paper in zip(SCHEMES, PAPER[method], strict=True):
            runs = [run(out, scheme, seed, dict(settings)) for seed in seeds]
            cells += [cell(runs), f"{paper:.4f}"]
            seconds.append(f"{method}, {scheme}: {statistics.median(found['cpu'] for found in runs):.1f}")
            if method == "DC-CFL":
                choices = ", ".join(f"t = {one['solved'].threshold:g} (K = {one['k']})" for one in runs)
                chosen.append(f"{scheme}: {choices}")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)
    print("\nChosen by validation: " + "; ".join(chosen) + ".")
    print("CPU seconds: " + "; ".join(seconds) + ".")
    if options.plain:
        plain = [sys.executable, "-m", "benchmarks.plain_dc_cfl", str(out)]
        taken, accuracy, _ = subprocess.run(plain, check=True, capture_output=True, text=True).stdout.split()
        ours = run(out, "C = 2", 0, dict(METHODS["DC-CFL"]))["cpu"]
        print(f"\nDC-CFL, C = 2, seed 0: {ours:.1f} CPU seconds; plain script {taken} (accuracy {accuracy}): ", end="")
        print(f"{ours / float(taken):.2f} of it.")
    if options.variants:
        print("\n| DC-CFL | C = 2 | C = 3 |\n|---|---:|---:|")
        for name, changes in VARIANTS.items():
            row = [
                cell([run(out, scheme, seed, METHODS["DC-CFL"] | changes) for seed in seeds])
                for scheme in ("C = 2", "C = 3")
            ]
            print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
