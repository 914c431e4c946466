"""Figures about who is like whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from server.report.compared import Grouping
from server.report.figure import MOST_LABELS, Figure, label, site_axis
from server.report.pair_figures import distance_figure, group_marks, together_figure
from server.report.palette import group_colour, group_symbol
from server.report.record import RunRecord
from server.report.similarity_figures import similarity_figures
from server.report.study import Study
from server.report.threshold_figure import threshold_figure
from server.report.tree_figures import choice_figure, rehearsal_figure, tree_figure

# Within a group, sites that are as good as equal lie on one point: dots are drawn so that one sees through them.
_SEE_THROUGH = 0.8


def grouping_figures(record: RunRecord, study: Study | None) -> list[Figure]:
    """All figures that a run's grouping has data for."""
    if record.compared is None:
        return []
    figures = []
    if study is not None and len(record.compared.sites) > 1:
        figures.append(_map(record, record.compared, study))
    figures.append(_class_mix(record, record.compared, study))
    if study is not None and len(record.compared.sites) > 1:
        assert record.distance is not None
        figures.append(distance_figure(record.compared, study, record.distance))
        figures += similarity_figures(record.compared, study, record.views)
        if study.tree is not None:
            figures.append(tree_figure(record.compared, study, study.tree))
            figures.append(choice_figure(record, record.compared, study))
            if record.rehearsal is not None:
                figures.append(rehearsal_figure(record.rehearsal))
        if study.stability is not None:
            figures.append(together_figure(record.compared, study))
    if record.solved is not None and len(record.solved.validation) > 1:
        figures.append(threshold_figure(record.solved))
    return figures


def _map(record: RunRecord, grouping: Grouping, study: Study) -> Figure:
    points = study.map.points
    # A name stands on the side where its mark's nearest neighbour is not.
    apart = np.hypot(*(points[:, None] - points).transpose(2, 0, 1)) + np.diag(np.full(len(points), np.inf))
    below = points[apart.argmin(axis=1), 1] > points[:, 1]
    above = np.where(below, "bottom center", "top center").tolist()
    traces: list[dict[str, Any]] = []
    for group in np.unique(grouping.labels).tolist():
        members = np.flatnonzero(grouping.labels == group)
        names = [label(grouping.sites[i]) for i in members]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text" if len(grouping.sites) <= MOST_LABELS else "markers",
                "name": f"group {group}",
                "x": points[members, 0],
                "y": points[members, 1],
                "text": names,
                "textposition": [above[i] for i in members],
                "textfont": {"size": 11, "color": "@muted"},
                "customdata": [
                    [name, _held(record, grouping.sites[i])] for name, i in zip(names, members, strict=True)
                ],
                "hovertemplate": "<b>%{customdata[0]}</b>, group " + str(group) + "<br>%{customdata[1]}<extra></extra>",
                "marker": {
                    "color": group_colour(group),
                    "symbol": group_symbol(group),
                    "size": 13 if len(grouping.sites) <= MOST_LABELS else 9,
                    "opacity": _SEE_THROUGH,
                    "line": {"color": "@paper", "width": 1},
                },
            }
        )
    bare = {"visible": False, "range": [-1.15, 1.15]}
    largest = np.abs(points[:, 1]).max()
    return Figure(
        "map",
        "Map of the sites",
        "Each mark is a site; the nearer two marks, the more alike the data. The map keeps the order of the distances, "
        "not their size, and directions mean nothing."
        + (f" A plane cannot show it all (stress {study.map.stress:.2f}): trust the heatmap where they disagree."
           if study.map.stress > 0.2 else ""),
        f"A map of {len(grouping.sites)} sites with one colour and shape for each of {len(traces)} groups.",
        traces,
        {
            "xaxis": bare,
            "yaxis": bare | {"range": [-largest - 0.2, largest + 0.25]},
            "height": 460,
            "showlegend": True,
            "hovermode": "closest",
        },
        ("site", "group", "x", "y"),
        [
            (site, int(group), float(x), float(y))
            for site, group, (x, y) in zip(grouping.sites, grouping.labels, points, strict=True)
        ],
    )  # fmt: skip


def _held(record: RunRecord, site: str) -> str:
    """The main classes of a site, in words."""
    card = record.cards.get(site)
    if card is None or not card.train_samples:
        return ""
    shares = sorted(zip(card.class_counts, record.classes, strict=True), reverse=True)
    named = [f"{label(name)} {count / card.train_samples:.0%}" for count, name in shares[:3] if count]
    return f"{card.train_samples:,} training samples: {', '.join(named)}"


def ordered_sites(grouping: Grouping, study: Study | None) -> list[int]:
    """Positions of the sites, groups side by side."""
    by_group = np.lexsort((np.arange(len(grouping.labels)), grouping.labels))
    return [int(position) for position in (by_group if study is None else study.order)]


def _class_mix(record: RunRecord, grouping: Grouping, study: Study | None) -> Figure:
    order = ordered_sites(grouping, study)
    sites = [grouping.sites[i] for i in order]
    groups = [int(grouping.labels[i]) for i in order]
    counts = np.array([record.cards[s].class_counts if s in record.cards else [0] * len(record.classes) for s in sites])
    counts = counts.reshape(len(sites), len(record.classes))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    heat: dict[str, Any] = {
        "type": "heatmap",
        "z": shares.T,
        "x": list(range(len(sites))),
        "y": [label(name) for name in record.classes],
        "colorscale": "@scale",
        "zmin": 0,
        "zmax": 1,
        "xgap": 1 if len(sites) <= MOST_LABELS else 0,
        "ygap": 1,
        "customdata": [[[label(s), g, int(c)] for s, g, c in zip(sites, groups, row, strict=True)] for row in counts.T],
        "hovertemplate": "<b>%{customdata[0]}</b>, group %{customdata[1]}<br>%{y}: %{z:.0%} (%{customdata[2]} samples)"
        "<extra></extra>",
        "colorbar": {"tickformat": ".0%", "title": {"text": "share"}, "thickness": 12},
    }
    boundaries, marks = group_marks(groups)
    return Figure(
        "class-mix",
        "What each site holds",
        "One column per site, one row per class, and the darker (on a dark page: the brighter) a cell, the larger the "
        "share of the site's training samples that are of that class. Upright lines part the groups.",
        f"The class shares of {len(sites)} sites, ordered by group.",
        [heat],
        {
            "xaxis": site_axis(sites),
            "yaxis": {"autorange": "reversed", "automargin": True, "type": "category", "showgrid": False},
            "height": max(240, min(90 + 34 * len(record.classes), 640)),
            "shapes": boundaries,
            "annotations": marks,
            "margin": {"t": 44},
        },
        ("site", "group", *record.classes),
        [(site, group, *map(int, row)) for site, group, row in zip(sites, groups, counts, strict=True)],
    )
