"""Learning curves of one table as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from cli.suites.results import CLOCK, Outcome

_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^v<>PX*h"


def has_clock(outcomes: Sequence[Outcome]) -> bool:
    """Whether there is a virtual clock to draw by."""
    return any(np.isfinite(outcome.curves[CLOCK]).any() for outcome in outcomes)


def draw(
    outcomes: Sequence[Outcome], title: str, reference: str, stem: Path, *, by_clock: bool = False
) -> tuple[Path, Path]:
    """Draw accuracy over the rounds, mean over the seeds with a band of one standard deviation; return both files.

    The reference row is drawn thicker. `by_clock`: over the virtual seconds at which the rounds closed, mean over the
    seeds, of the methods that have them.

    Raises ImportError where matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    # Text as text: it can be searched and restyled, and the file stays small.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if len(outcome.curves["accuracy"]) == 1 < outcome.cell.config.rounds:
            continue  # what sites made for themselves after the last round is no curve
        if not by_clock or has_clock([outcome]):
            grouped.setdefault(outcome.cell.label, []).append(outcome)
    colours = pyplot.get_cmap("tab10")
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for place, ((label, group), style, marker) in enumerate(
        zip(grouped.items(), cycle(_STYLES), cycle(_MARKERS), strict=False)
    ):
        values = 100 * np.array([outcome.curves["accuracy"] for outcome in group])
        rounds = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(group) > 1 else 0
        if by_clock:
            rounds = np.mean([outcome.curves[CLOCK] for outcome in group], axis=0)
        colour, width = colours(place % 10), 3 if label == reference else 1.5
        every = max(len(rounds) // 10, 1)
        axes.plot(rounds, mean, style, marker=marker, markevery=every, ms=5, color=colour, lw=width, label=label)
        if len(group) > 1:
            axes.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.1, lw=0)
    axes.set(
        title=title,
        xlabel="virtual seconds" if by_clock else "round",
        ylabel="accuracy on the sites' own test parts, %",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=not by_clock))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    figure.savefig(png, dpi=150)
    # Without a date equal runs give equal pictures.
    figure.savefig(svg, metadata={"Date": None})
    pyplot.close(figure)
    return png, svg
