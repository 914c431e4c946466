"""All tables of a suite at a glance: what joining brings over training alone, per method and world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cli.suites.results import ALONE, Row

# Points of accuracy beyond which colours do not grow stronger: what is more than this is plain anyway.
_FULL = 15.0


def gains(of_table: Mapping[str, Sequence[Row]]) -> tuple[list[str], list[str], NDArray[np.float64]] | None:
    """Points of accuracy at the last round above Local in the same table: tables, other rows' labels, [tables, labels].

    NaN where a table lacks a row. None where there is nothing to compare: one table only, or none with Local in it.
    """
    alone = {
        name: next((row.final["accuracy"].mean for row in rows if row.method == ALONE), None)
        for name, rows in of_table.items()
    }
    tables = [name for name, accuracy in alone.items() if accuracy is not None]
    labels = list(dict.fromkeys(row.label for name in tables for row in of_table[name] if row.method != ALONE))
    if len(tables) < 2 or not labels:
        return None
    found = np.full((len(tables), len(labels)), np.nan)
    for place, name in enumerate(tables):
        for row in of_table[name]:
            if row.method != ALONE:
                found[place, labels.index(row.label)] = 100 * (row.final["accuracy"].mean - (alone[name] or 0))
    return tables, labels, found


def draw(of_table: Mapping[str, Sequence[Row]], title: str, path: Path) -> Path | None:
    """Draw the gains as a map, with Local's own accuracy and, where groups have a truth, how near they came to it.

    Returns the file, or None where there is nothing to compare. Raises ImportError where matplotlib is not installed.
    """
    if (found := gains(of_table)) is None:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables, labels, points = found
    figure, axes = pyplot.subplots(
        figsize=(4.2 + 0.85 * len(labels), 2.1 + 0.42 * len(tables)), layout="constrained", facecolor="white"
    )
    image = axes.imshow(points, cmap="RdBu", vmin=-_FULL, vmax=_FULL, aspect="auto")
    for place, name in enumerate(tables):
        rows = {row.label: row for row in of_table[name]}
        for column, label in enumerate(labels):
            value = points[place, column]
            if not np.isfinite(value):
                continue
            ari = rows[label].ari.mean
            told = f"{value:+.1f}" + (f"\n({ari:.2f})" if np.isfinite(ari) and rows[label].k.mean > 1 else "")
            colour = "white" if abs(value) > 0.6 * _FULL else "black"
            axes.text(column, place, told, ha="center", va="center", fontsize=7.5, linespacing=1.15, color=colour)
    heights = [
        f"{name}  ({100 * next(row.final['accuracy'].mean for row in of_table[name] if row.method == ALONE):.1f})"
        for name in tables
    ]
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="left", fontsize=8.5)
    axes.set_yticks(range(len(tables)), heights, fontsize=8.5)
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(labels) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(tables) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.suptitle(f"{title}: points of accuracy above training alone", fontsize=10)
    axes.set_xlabel(
        "(in brackets: accuracy of training alone, %; adjusted Rand index of the groups where kinds are known)",
        fontsize=7,
    )
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title("points", fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
