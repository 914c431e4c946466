"""A small real table for tests: scikit-learn's wines, 178 rows, 13 columns, 3 classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

from cli.toml_text import schema_toml
from client.data.draft import draft_schema
from client.data.tables import read_columns


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


def write_wine(folder: Path) -> Path:
    """`wine.csv` and its schema `wine.toml`."""
    wine = load_wine()
    names = [name.replace("/", " per ") for name in wine.feature_names]
    kinds = np.array(["barolo", "grignolino", "barbera"])[wine.target]
    rows = [[*values, kind] for values, kind in zip(wine.data.tolist(), kinds, strict=True)]
    path = write_csv(folder / "wine.csv", [*names, "class"], rows)
    (folder / "wine.toml").write_text(schema_toml(draft_schema(read_columns(path), "class")), encoding="utf-8")
    return path


def wine_settings(folder: Path, **changes: object) -> dict[str, object]:
    """Settings of a run on wines, as flat keys; `__` stands for a dot."""
    if not (folder / "wine.csv").exists():
        write_wine(folder)
    return {
        "method": "dc-cfl",
        "sites": 6,
        "rounds": 1,
        "cache": str(folder / "cache"),
        "data.source": "table",
        "data.path": str(folder / "wine.csv"),
        "data.table": str(folder / "wine.toml"),
        "partition.scheme": "classes",
        "partition.classes_per_site": 2,
        "collaboration.anchor_rows": 60,
        "train.model": "mlp",
        "train.lr": 0.05,
        "train.momentum": 0.5,
        "train.epochs": 15,
        "round.deadline": 60.0,
        "round.start_timeout": 5.0,
    } | {key.replace("__", "."): value for key, value in changes.items()}
