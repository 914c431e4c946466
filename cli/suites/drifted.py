"""What drift costs: the same runs with and without it, as the papers tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cli.suites.results import Outcome
from common.config import Config

COLUMNS = ("method", "drift", "stable, %", "before, %", "just after, %", "end, %", "Δ‰", "paper's Δ‰")


def loss_of_drift(stable: float, end: float) -> float:
    """Δ‰ = 1000 (stable − end) / stable, where stable is what the same run comes to without drift."""
    return 1000 * (stable - end) / stable


def lines(outcomes: Sequence[Outcome], stable: str, published: Mapping[str, float]) -> list[list[str]]:
    """One line per method and setting with drift; mean of the sites, mean over the seeds that both have finished.

    `stable` names the setting without drift, `published` the paper's Δ‰ by label.
    """
    found: dict[tuple[str, str], dict[int, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.cell.label, outcome.cell.setting), {})[outcome.cell.seed] = outcome
    table = []
    for (label, setting), drifted in found.items():
        undisturbed = found.get((label, stable), {})
        seeds = sorted(drifted.keys() & undisturbed.keys())
        if setting == stable or not seeds:
            continue
        first = _first_round(drifted[seeds[0]].cell.config)
        course = _course([drifted[seed] for seed in seeds])
        end = float(_course([undisturbed[seed] for seed in seeds])[-1])
        figures = [end, course[first - 2], course[first - 1], course[-1]]
        published_loss = f"{published[label]:g}" if label in published else "–"
        lost = f"{loss_of_drift(end, float(course[-1])):.0f}"
        table.append([label, setting, *(f"{100 * value:.1f}" for value in figures), lost, published_loss])
    return table


def _course(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.mean([outcome.curves["mean_site_accuracy"] for outcome in outcomes], axis=0)
    return mean


def _first_round(config: Config) -> int:
    """The first round with changed data; from the second on, so that there is one before."""
    return max(2, min(event.first_round(config.rounds) for event in config.drift))
