"""Chooses among the candidates of a row by what their trials came to, on samples that are no test samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cli.suites.results import Outcome, read_outcome
from cli.suites.suite import Cell


def choose(trials: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the candidate with the best mean over the seeds, by table and row; the first of equals.

    What counts is the mean of the sites at the last round. A row whose trials are not all finished has no choice yet.
    """
    rows: dict[tuple[str, str], dict[tuple[tuple[str, Any], ...], list[Outcome | None]]] = {}
    for cell in trials:
        candidates = rows.setdefault((cell.table, cell.label), {})
        candidates.setdefault(cell.chosen, []).append(read_outcome(cell))
    chosen = {}
    for row, candidates in rows.items():
        scores = {candidate: _score(outcomes) for candidate, outcomes in candidates.items()}
        if not any(score is None for score in scores.values()):
            chosen[row] = dict(max(scores.items(), key=lambda item: item[1] or 0.0)[0])
    return chosen


def _score(outcomes: Sequence[Outcome | None]) -> float | None:
    """Mean over the seeds; None: some are not finished. A model that gives no numbers has none right."""
    if any(outcome is None for outcome in outcomes):
        return None
    return float(np.mean([np.nan_to_num(one.curves["mean_site_accuracy"][-1]) for one in outcomes if one is not None]))
