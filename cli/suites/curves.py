"""Learning curves of one table as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from cli.suites.results import Outcome

_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^v<>PX*h"


def draw(outcomes: Sequence[Outcome], title: str, stem: Path) -> list[Path]:
    """Draw accuracy over the rounds, mean over the seeds with a band of one standard deviation; return the files.

    Raises ImportError where matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    # Text as text: it can be searched and restyled, and the file stays small.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if len(outcome.curves["accuracy"]) == 1 < outcome.cell.config.rounds:
            continue  # what sites made for themselves after the last round is no curve
        grouped.setdefault(outcome.cell.label, []).append(outcome)
    colours = pyplot.get_cmap("tab20")
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for place, ((label, group), style, marker) in enumerate(
        zip(grouped.items(), cycle(_STYLES), cycle(_MARKERS), strict=False)
    ):
        values = 100 * np.array([outcome.curves["accuracy"] for outcome in group])
        rounds = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(group) > 1 else 0
        every = max(len(rounds) // 10, 1)
        axes.plot(rounds, mean, style, marker=marker, markevery=every, ms=5, color=colours(place % 20), label=label)
        if len(group) > 1:
            axes.fill_between(rounds, mean - deviation, mean + deviation, color=colours(place % 20), alpha=0.12, lw=0)
    axes.set(title=title, xlabel="round", ylabel="accuracy on the sites' own test parts, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return files
