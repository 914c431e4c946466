"""Figures about who is like whom."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.clustering import MergeTree
from server.report.figure import MOST_LABELS, Figure, distance_triangle, label, share_triangle, site_axis
from server.report.palette import group_colour, group_symbol
from server.report.record import Grouping, RunRecord
from server.report.study import LEFT_OUT, Study

# Above this the distances would not fit into the page; neighbouring sites are then shown by their mean.
MOST_CELLS = 1000
# Within a group, sites that are as good as equal lie on one point: dots are drawn so that one sees through them.
_SEE_THROUGH = 0.8


def grouping_figures(record: RunRecord, study: Study | None) -> list[Figure]:
    """All figures that a run's grouping has data for."""
    if record.grouping is None:
        return []
    figures = []
    if study is not None and len(record.grouping.sites) > 1:
        figures.append(_map(record, record.grouping, study))
    figures.append(_class_mix(record, record.grouping, study))
    if study is not None and len(record.grouping.sites) > 1:
        assert record.distance is not None
        figures.append(_heatmap(record.grouping, study, record.distance))
        if study.tree is not None:
            figures.append(_dendrogram(record.grouping, study, study.tree))
            figures.append(_silhouettes(record, record.grouping, study))
        if study.stability is not None:
            figures.append(_together(record.grouping, study))
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
    boundaries, marks = _group_marks(groups)
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


def _group_marks(groups: list[int], *, square: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
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


def _heatmap(grouping: Grouping, study: Study, distance: NDArray[np.float64]) -> Figure:
    order = study.order
    sites = [grouping.sites[i] for i in order]
    groups = [int(grouping.labels[i]) for i in order]
    ordered = distance[np.ix_(order, order)]
    step = -(-len(sites) // MOST_CELLS)
    note = ""
    if step > 1:
        ordered, sites, groups = _block_means(ordered, step), sites[::step], groups[::step]
        note = f" Each cell is the mean over {step} × {step} neighbouring sites; distances.npy has them all."
    off = ordered[~np.eye(len(ordered), dtype=bool)]
    positive = off[off > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1e-3, 1.0)
    boundaries, marks = _group_marks(groups, square=True)
    return Figure(
        "distances",
        "Distances between sites",
        "The stronger a cell, the further apart are the data of the two sites that meet there; lines part the groups. "
        "Pale squares along the diagonal are groups of alike sites. Colours follow the logarithm of the distance."
        + note,
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


def _block_means(matrix: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """Means over blocks of step × step; the last block may be smaller."""
    starts = np.arange(0, len(matrix), step)
    sizes = np.diff([*starts, len(matrix)])
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    means: NDArray[np.float64] = sums / np.outer(sizes, sizes)
    return means


def _dendrogram(grouping: Grouping, study: Study, tree: MergeTree) -> Figure:
    position = np.empty(tree.sites)
    position[study.order] = np.arange(tree.sites)
    positive = tree.heights[tree.heights > 0]
    floor = float(positive.min()) / 2 if len(positive) else 0.5
    at: dict[int, tuple[float, float, int | None]] = {
        site: (float(position[site]), floor, int(grouping.labels[site])) for site in range(tree.sites)
    }
    branches: dict[int | None, tuple[list[float | None], list[float | None]]] = {}
    rows: list[tuple[str | int | float | None, ...]] = []
    for number, ((left, right), merge) in enumerate(zip(tree.pairs.tolist(), tree.heights.tolist(), strict=True)):
        height = max(merge, floor)
        (x0, y0, g0), (x1, y1, g1) = at[left], at.pop(right)
        group = g0 if g0 == g1 else None
        xs, ys = branches.setdefault(group, ([], []))
        xs += [x0, x0, x1, x1, None]
        ys += [y0, height, height, y1, None]
        at[left] = ((x0 + x1) / 2, height, group)
        rows.append((number + 1, grouping.sites[left], grouping.sites[right], merge))
    traces = [
        {
            "type": "scatter", "mode": "lines", "x": xs, "y": ys, "hoverinfo": "skip", "showlegend": False,
            "line": {"color": "@line" if group is None else group_colour(group), "width": 1.5},
        }
        for group, (xs, ys) in sorted(branches.items(), key=lambda item: -1 if item[0] is None else item[0])
    ]  # fmt: skip
    traces += [
        {
            "type": "scatter", "mode": "markers", "name": f"group {group}",
            "x": position[members], "y": [floor] * len(members),
            "text": [label(grouping.sites[i]) for i in members],
            "hovertemplate": f"<b>%{{text}}</b>, group {group}<extra></extra>",
            "marker": {"color": group_colour(group), "symbol": group_symbol(group),
                       "size": 9 if len(grouping.sites) <= MOST_LABELS else 6},
        }
        for group in np.unique(grouping.labels).tolist()
        for members in [np.flatnonzero(grouping.labels == group)]
    ]  # fmt: skip
    k = len(np.unique(grouping.labels))
    cut = _cut_height(tree, k, floor)
    return Figure(
        "dendrogram",
        "How the groups merge",
        "Read from below: alike sites join first, and the higher two branches meet, the less alike they are "
        "(logarithmic). The broken line is the cut: what has joined below it is one group. A cut with much empty room "
        "above and below is a clear one.",
        f"A tree of {tree.sites} sites, cut at a distance of {cut:.2g} into {k} groups.",
        traces,
        {
            "xaxis": site_axis([grouping.sites[i] for i in study.order]),
            "yaxis": {"type": "log", "title": {"text": "distance"}, "automargin": True, "zeroline": False,
                      "dtick": _log_step(floor, tree), "tickformat": "~g"},
            "height": 420,
            "showlegend": True,
            "hovermode": "closest",
            "shapes": [
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": cut, "y1": cut,
                 "line": {"color": "@bad", "width": 2, "dash": "dash"}}
            ],
            "annotations": [
                {"xref": "paper", "x": 1, "xanchor": "right", "y": math.log10(cut), "yanchor": "bottom",
                 "text": f"cut: {k} group{'s' if k != 1 else ''}", "showarrow": False, "font": {"color": "@bad"}}
            ],
        },
        ("merge", "first_site_of_one", "first_site_of_other", "distance"),
        rows,
    )  # fmt: skip


def _log_step(floor: float, tree: MergeTree) -> int | str:
    """Powers of ten along a long axis; 1, 2 and 5 times them along a short one."""
    return 1 if float(tree.heights.max()) > 100 * floor else "D2"


def _cut_height(tree: MergeTree, k: int, floor: float) -> float:
    """A height between the last merge that happened and the first that did not."""
    done = tree.sites - k
    below = float(tree.heights[done - 1]) if done else floor
    above = float(tree.heights[done]) if done < len(tree.heights) else below * 2
    return math.sqrt(max(below, floor) * max(above, floor))


def _silhouettes(record: RunRecord, grouping: Grouping, study: Study) -> Figure:
    k = len(np.unique(grouping.labels))
    window = grouping.window
    ks = sorted(study.curve)
    settings = record.clustering
    if settings.k:
        how = f"The number of groups was set to {settings.k}."
    elif settings.threshold:
        how = f"The number of groups follows from cluster.threshold = {settings.threshold:g}."
    else:
        how = "The shaded band is the window that the spread of the distances opens; the ring is the choice."
    shapes = []
    if window:
        shapes.append({"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": window[0] - 0.5, "x1": window[-1] + 0.5,
                       "fillcolor": "@accent", "opacity": 0.12, "line": {"width": 0}, "layer": "below"})  # fmt: skip
    return Figure(
        "silhouette",
        "How many groups",
        "The higher the silhouette, the better the sites fit into their own group and no other (1 is perfect, 0 none; "
        f"below 0.25 there is nothing to speak of). {how}",
        f"The mean silhouette is {study.curve.get(k, study.silhouette):.2f} at the {k} groups of this run.",
        [
            {"type": "scatter", "mode": "lines+markers", "x": ks, "y": [study.curve[c] for c in ks],
             "line": {"color": "@accent", "width": 2}, "marker": {"size": 7}, "showlegend": False,
             "hovertemplate": "%{x} groups: silhouette %{y:.3f}<extra></extra>"},
            {"type": "scatter", "mode": "markers", "x": [k], "y": [study.curve.get(k, study.silhouette)],
             "marker": {"size": 18, "symbol": "circle-open", "color": "@bad", "line": {"width": 3}},
             "showlegend": False, "hovertemplate": f"chosen: {k} groups<extra></extra>"},
        ],
        {
            "xaxis": {"title": {"text": "number of groups"}, "dtick": 1 if len(ks) <= 20 else None, "zeroline": False},
            "yaxis": {"title": {"text": "mean silhouette"}, "automargin": True, "rangemode": "tozero"},
            "height": 320,
            "shapes": shapes,
        },
        ("groups", "mean_silhouette", "in_window", "chosen"),
        [(c, study.curve[c], int(c in window), int(c == k)) for c in ks],
    )  # fmt: skip


def _together(grouping: Grouping, study: Study) -> Figure:
    assert study.stability is not None
    order = study.order
    together = study.stability.together[np.ix_(order, order)]
    sites = [grouping.sites[i] for i in order]
    groups = [int(grouping.labels[i]) for i in order]
    step = -(-len(sites) // MOST_CELLS)
    note = ""
    if step > 1:
        together, sites, groups = _block_means(np.nan_to_num(together), step), sites[::step], groups[::step]
        note = f" Each cell is the mean over {step} × {step} neighbouring sites."
    boundaries, marks = _group_marks(groups, square=True)
    return Figure(
        "stability",
        "How sure the grouping is",
        f"A random {LEFT_OUT:.0%} of the sites was left out {study.stability.draws} times and the rest grouped anew, "
        "choice of K included. A cell says how often its two sites shared a group. A sure grouping has full squares on "
        "the diagonal and empty space beside them; pale squares or stains beside them are doubtful sites." + note,
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
