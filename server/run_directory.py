"""The product of a run, on disk. Everything else can be rebuilt from it."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from common.config import Config, SettingsError

RUN = "run.json"
EVENTS = "events.jsonl"
CLUSTERS = "clusters.json"
DISTANCES = "distances.npy"
METRICS = "metrics.csv"
SUMMARY = "summary.json"
MODELS = "models"


def default_directory(config: Config) -> Path:
    """Where a run goes when nobody says: a folder named after time, method and seed."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{config.method}-seed{config.seed}"


def create(config: Config) -> Path:
    """Make the run directory, refusing one that already holds a run."""
    path = Path(config.out) if config.out else default_directory(config)
    path = path.expanduser().absolute()
    if (path / RUN).exists():
        raise SettingsError(f"out = {path} already holds a run: choose another directory or remove that one")
    try:
        (path / MODELS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"out = {path} cannot be created: {error.strerror}") from None
    return path


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def finite(value: float) -> float | None:
    """JSON has no NaN; what is not defined is null."""
    return value if math.isfinite(value) else None
