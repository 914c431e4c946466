"""Figures of every pair of sites: how far apart they are, and how often they end up together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.report.compared import Grouping
from server.report.figure import Figure, distance_triangle, share_triangle, site_axis
from server.report.palette import group_colour
from server.report.study import LEFT_OUT, Study

# Above this the distances would not fit into the page; neighbouring sites are then shown by their mean.
MOST_CELLS = 1000


def distance_figure(grouping: Grouping, study: Study, distance: NDArray[np.float64]) -> Figure:
    """How far apart every two sites are."""
    ordered, sites, groups, note = thinned(distance, grouping, study)
    off = ordered[~np.eye(len(ordered), dtype=bool)]
    positive = off[off > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1e-3, 1.0)
    boundaries, marks = group_marks(groups, square=True)
    return Figure(
        "distances",
        "Distances between sites",
        "The stronger a cell, the further apart are the data of the two sites that meet there; lines part the groups. "
        "Pale squares along the diagonal are groups of alike sites. Colours follow the logarithm of the distance."
        + (note and f"{note}; distances.npy has them all."),
        f"Distances between {len(sites)} sites, ordered by group: from {low:.2g} to {high:.2g}.",
        [
            {
                "type": "heatmap",
                "z": distance_triangle(ordered, low, high),
                "log": [math.log10(low), math.log10(max(high, low * 1.001))],
                "names": sites,
                "says": "distance",
                "colorscale": "@scale",
                "colorbar": {"title": {"text": "distance"}, "thickness": 12},
            }
        ],
        {
            "xaxis": site_axis(sites),
            "yaxis": site_axis(sites, autorange=False) | {"range": [len(sites) - 0.4, -0.6]},
            "height": 560,
            "shapes": boundaries,
            "annotations": marks,
            "margin": {"t": 44},
        },
    )


def together_figure(grouping: Grouping, study: Study) -> Figure:
    """How often every two sites end up in one group when some sites are left out."""
    assert study.stability is not None
    together, sites, groups, note = thinned(study.stability.together, grouping, study)
    boundaries, marks = group_marks(groups, square=True)
    return Figure(
        "stability",
        "How sure the grouping is",
        f"A random {LEFT_OUT:.0%} of the sites was left out {study.stability.draws} times and the rest grouped anew, "
        "choice of K included. A cell says how often its two sites shared a group. A sure grouping has full squares on "
        "the diagonal and empty space beside them; pale squares or stains beside them are doubtful sites."
        + (note and f"{note}."),
        f"How often {len(sites)} sites stay together when a fifth of them is left out.",
        [
            {
                "type": "heatmap",
                "z": share_triangle(together),
                "names": sites,
                "says": "together",
                "zmin": 0,
                "zmax": 1,
                "colorscale": "@scale",
                "colorbar": {"title": {"text": "together"}, "tickformat": ".0%", "thickness": 12},
            }
        ],
        {
            "xaxis": site_axis(sites),
            "yaxis": site_axis(sites, autorange=False) | {"range": [len(sites) - 0.4, -0.6]},
            "height": 560,
            "shapes": boundaries,
            "annotations": marks,
            "margin": {"t": 44},
        },
    )


def group_marks(groups: list[int], *, square: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines between groups that stand side by side, and their numbers above."""
    starts = [i for i in range(len(groups)) if i == 0 or groups[i] != groups[i - 1]]
    lines: list[dict[str, Any]] = []
    for start in starts[1:]:
        style = {"type": "line", "line": {"color": "@bad", "width": 2}}
        lines.append(style | {"x0": start - 0.5, "x1": start - 0.5, "yref": "paper", "y0": 0, "y1": 1})
        if square:
            lines.append(style | {"y0": start - 0.5, "y1": start - 0.5, "xref": "paper", "x0": 0, "x1": 1})
    ends = [*starts[1:], len(groups)]
    marks = [
        {
            "text": f"G{groups[start]}", "x": (start + end - 1) / 2, "yref": "paper", "y": 1, "yanchor": "bottom",
            "showarrow": False, "font": {"size": 12, "color": group_colour(groups[start])},
        }
        for start, end in zip(starts, ends, strict=True)
        # A number that is wider than its group would cover the next one.
        if (end - start) * 60 >= len(groups)
    ]  # fmt: skip
    return lines, marks


def thinned(
    matrix: NDArray[np.float64], grouping: Grouping, study: Study
) -> tuple[NDArray[np.float64], list[str], list[int], str]:
    """Return a matrix of pairs in the order of the study, its sites and their groups, and what to say of it.

    Of very many sites a cell is the mean over neighbours.
    """
    order = study.order
    sites, groups = [grouping.sites[i] for i in order], [int(grouping.labels[i]) for i in order]
    ordered, step = matrix[np.ix_(order, order)], -(-len(sites) // MOST_CELLS)
    if step == 1:
        return ordered, sites, groups, ""
    said = f" Each cell is the mean over {step} × {step} neighbouring sites"
    return _block_means(np.nan_to_num(ordered), step), sites[::step], groups[::step], said


def _block_means(matrix: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """Means over blocks of step × step; the last block may be smaller."""
    starts = np.arange(0, len(matrix), step)
    sizes = np.diff([*starts, len(matrix)])
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    means: NDArray[np.float64] = sums / np.outer(sizes, sizes)
    return means
