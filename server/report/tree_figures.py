"""Figures of how sites merge into groups, and of how many groups were chosen."""

from __future__ import annotations

import math

import numpy as np

from server.clustering import MergeTree
from server.history.events import RehearsalDone
from server.report.compared import Grouping
from server.report.figure import MOST_LABELS, Figure, label, site_axis
from server.report.palette import group_colour, group_symbol
from server.report.record import RunRecord
from server.report.study import Study


def tree_figure(grouping: Grouping, study: Study, tree: MergeTree) -> Figure:
    """Which sites merged at what distance, and where the tree was cut."""
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


def rehearsal_figure(rehearsal: RehearsalDone) -> Figure:
    """What some numbers of groups would bring, as heads on the frozen encoder showed."""
    outcome = rehearsal.outcome
    gains = [outcome.losses[0] - loss for loss in outcome.losses]
    up = [high - (loss - outcome.losses[0]) for high, loss in zip(outcome.high, outcome.losses, strict=True)]
    down = [(loss - outcome.losses[0]) - low for low, loss in zip(outcome.low, outcome.losses, strict=True)]
    places = list(range(len(outcome.ks)))
    chosen = outcome.ks.index(outcome.k)
    return Figure(
        "rehearsal",
        "What more groups would bring",
        "Before training, heads on the frozen encoder were trained for each of these numbers of groups and tested on "
        "samples they had not seen. Above 0: less log loss than with one group. The bars are what other sites of this "
        "kind might show (95 %). The ring is the choice: the fewest groups that are not clearly worse than the best.",
        f"{outcome.k} groups were chosen by rehearsal; the silhouette would choose {rehearsal.by_silhouette}.",
        [
            {"type": "scatter", "mode": "lines+markers", "x": places, "y": gains,
             "error_y": {"type": "data", "symmetric": False, "array": [max(one, 0.0) for one in down],
                         "arrayminus": [max(one, 0.0) for one in up], "color": "@muted"},
             "text": [str(k) for k in outcome.ks],
             "line": {"color": "@accent", "width": 2}, "marker": {"size": 7}, "showlegend": False,
             "hovertemplate": "%{text} groups: %{y:.4f}<extra></extra>"},
            {"type": "scatter", "mode": "markers", "x": [chosen], "y": [gains[chosen]],
             "marker": {"size": 18, "symbol": "circle-open", "color": "@bad", "line": {"width": 3}},
             "showlegend": False, "hovertemplate": f"chosen: {outcome.k} groups<extra></extra>"},
        ],
        {
            "xaxis": {"title": {"text": "number of groups"}, "tickvals": places,
                      "ticktext": [str(k) for k in outcome.ks], "zeroline": False},
            "yaxis": {"title": {"text": "log loss less than one group's"}, "automargin": True},
            "height": 320,
        },
        ("groups", "log_loss", "beyond_one_group_low", "beyond_one_group_high", "chosen"),
        [
            (k, loss, low, high, int(k == outcome.k))
            for k, loss, low, high in zip(outcome.ks, outcome.losses, outcome.low, outcome.high, strict=True)
        ],
    )  # fmt: skip


def _how_chosen(record: RunRecord, grouping: Grouping) -> str:
    """Where the number of groups comes from, and what the band of the figure is."""
    settings, window = record.clustering, grouping.window
    if settings.k:
        return f"The number of groups was set to {settings.k}."
    if settings.threshold:
        return f"The number of groups follows from cluster.threshold = {settings.threshold:g}."
    ring = "the ring is the choice of the rehearsal." if record.rehearsal is not None else "the ring is the choice."
    if not window:
        return ring.capitalize()
    if settings.rule == "published":
        return f"The shaded band is the window that the spread of the distances opens; {ring}"
    numbers = f"{window[0]} to {window[-1]}" if len(window) > 1 else f"{window[0]} only"
    return f"The shaded band is what the guarded rule chooses from, {numbers}; {ring}"


def choice_figure(record: RunRecord, grouping: Grouping, study: Study) -> Figure:
    """How good every number of groups would have been."""
    k = len(np.unique(grouping.labels))
    window = grouping.window
    ks = sorted(study.curve)
    shapes = []
    if window:
        shapes.append({"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": window[0] - 0.5, "x1": window[-1] + 0.5,
                       "fillcolor": "@accent", "opacity": 0.12, "line": {"width": 0}, "layer": "below"})  # fmt: skip
    return Figure(
        "silhouette",
        "How many groups",
        "The higher the silhouette, the better the sites fit into their own group and no other (1 is perfect, 0 none; "
        f"below 0.25 there is nothing to speak of). {_how_chosen(record, grouping)}",
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
