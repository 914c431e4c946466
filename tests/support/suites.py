"""Suites and finished runs as files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from cli.suites.suite import Cell
from server.listeners.table import COLUMNS


def suite_file(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


# Of each site's test part: a has few, so that it can hardly tell whether it is better off alone.
SAMPLES = {"a": 10, "c": 40}


def finished_run(cell: Cell, accuracy: list[float], sites: dict[str, list[float]], **summary: object) -> None:
    """The directory of a finished run, as far as tables read it."""
    folder = Path(cell.config.out)
    folder.mkdir(parents=True)
    kept = {"config": json.loads(cell.config.model_dump_json()), "outcome": "finished"}
    (folder / "run.json").write_text(json.dumps(kept))
    with (folder / "metrics.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for number, value in enumerate(accuracy, start=1):
            overall = {"round": number, "scope": "overall", "accuracy": value, "macro_f1": value / 2, "auc": ""}
            table.writerow(overall | {"mean_site_accuracy": value, "worst_tenth_accuracy": value / 4})
            for name, values in sites.items():
                tested = {"accuracy": values[number - 1], "samples": SAMPLES.get(name, 10)}
                table.writerow({"round": number, "scope": "site", "name": name} | tested)
    (folder / "summary.json").write_text(json.dumps({"k": 2, **summary}))
    reply = {"time": 1, "event": "ReplyAccepted", "stage": "train", "round_number": 1, "seconds": 0}
    events = [
        reply | {"site": "a", "bytes_sent": 3_000_000, "bytes_received": 1_000_000},
        reply | {"site": "b", "bytes_sent": 5_000_000, "bytes_received": 1_000_000},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "cost.json").write_text(json.dumps({"seconds": 10, "cpu_seconds": 7}))
