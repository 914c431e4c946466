"""What else the sites could be compared by than what groups them, one map for each (FedCM, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from server.report.compared import Grouping
from server.report.figure import Figure, cosine_triangle, site_axis
from server.report.pair_figures import group_marks, thinned
from server.report.study import Study


def similarity_figures(grouping: Grouping, study: Study, views: Mapping[str, NDArray[np.float64]]) -> list[Figure]:
    """One map for each view, all of them by one scale of colours."""
    apart = ~np.eye(len(grouping.sites), dtype=bool)
    low = min((float(one[apart].min()) for one in views.values()), default=0.0)
    return [_figure(grouping, study, name, matrix, low) for name, matrix in views.items()]


def _figure(grouping: Grouping, study: Study, name: str, matrix: NDArray[np.float64], low: float) -> Figure:
    ordered, sites, groups, note = thinned(matrix, grouping, study)
    boundaries, marks = group_marks(groups, square=True)
    told = _told(matrix, grouping.labels)
    return Figure(
        f"similarity-{name.replace(' ', '-')}",
        f"Similarity of the {name}",
        f"{_SAYS[name]} The stronger a cell, the more alike two sites move in the warm-up (cosine). What tells sites "
        f"apart has strong squares along the diagonal and pale ones beside them. {told}" + (note and f"{note}."),
        f"Cosines between {len(sites)} sites, ordered by group. {told}",
        [
            {
                "type": "heatmap",
                "z": cosine_triangle(ordered),
                "names": sites,
                "says": "cosine",
                "zmin": low,
                "zmax": 1,
                "colorscale": "@scale",
                "colorbar": {"title": {"text": "cosine"}, "thickness": 12},
            }
        ],
        {
            "xaxis": site_axis(sites),
            "yaxis": site_axis(sites, autorange=False) | {"range": [len(sites) - 0.4, -0.6]},
            "height": 480,
            "shapes": boundaries,
            "annotations": marks,
            "margin": {"t": 44},
        },
    )


_SAYS = {
    "head path": "How the last layer moves, epoch by epoch: this forms the groups.",
    "head update": "What the warm-up changes in the last layer in all.",
    "body path": "How all layers below the last one move, epoch by epoch.",
    "body update": "What the warm-up changes below the last layer in all.",
}


def _told(matrix: NDArray[np.float64], labels: NDArray[np.int64]) -> str:
    """The mean cosine within the groups and between them."""
    same = labels[:, None] == labels
    within, between = matrix[same & ~np.eye(len(labels), dtype=bool)], matrix[~same]
    parts = [("within groups", within), ("between groups", between)]
    told = [
        f"{where} {values.mean():.2f} (standard deviation {values.std():.2f})" for where, values in parts if len(values)
    ]
    return f"Mean {', '.join(told)}."
