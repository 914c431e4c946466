"""How much hangs on the threshold of the groups, where validation chose it (DC-CFL, figure 3)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from server.history.events import Solved
from server.report.figure import Figure
from server.report.palette import group_dash, group_symbol


def threshold_figure(solved: Solved) -> Figure:
    """Accuracy on the rows held out, over the thresholds; one line for the widths of the layers."""
    curves = _curves(solved)
    chosen = "-".join(map(str, solved.hidden))
    thresholds = sorted({threshold for curve in curves.values() for threshold in curve})
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines+markers", "name": f"layers of {widths} units",
            "x": list(curve), "y": list(curve.values()),
            "line": {"color": f"@g{number}", "width": 2, "dash": group_dash(number)},
            "marker": {"size": 8, "symbol": group_symbol(number)},
            "hovertemplate": f"t = %{{x}}, layers of {widths}: %{{y:.2%}}<extra></extra>",
        }
        for number, (widths, curve) in enumerate(curves.items())
    ]  # fmt: skip
    best = curves.get(chosen, {}).get(solved.threshold)
    if best is not None:
        traces.append(
            {"type": "scatter", "mode": "markers", "x": [solved.threshold], "y": [best], "showlegend": False,
             "marker": {"size": 18, "symbol": "circle-open", "color": "@bad", "line": {"width": 3}},
             "hovertemplate": f"chosen: t = {solved.threshold:g}, layers of {chosen}<extra></extra>"}
        )  # fmt: skip
    ticks = [f"{one:g}{_of_groups(solved, one)}" for one in thresholds]
    return Figure(
        "threshold",
        "How much hangs on the threshold",
        "Two sites of a group differ in at most this part of their labels (total variation). Each point is the "
        "accuracy on rows that sites marked for validation, by groups and models for that threshold; below it stands "
        "how many groups there are; of thresholds that give the same groups one is drawn. The ring is the choice. A "
        "flat line means that the threshold hardly matters.",
        f"Validation chose t = {solved.threshold:g} among {len(thresholds)} thresholds, with layers of {chosen} units.",
        traces,
        {
            "xaxis": {"title": {"text": "threshold t, number of groups"}, "tickvals": thresholds, "ticktext": ticks,
                      "zeroline": False},
            "yaxis": {"title": {"text": "accuracy in validation"}, "tickformat": ".1%", "automargin": True},
            "height": 380,
            "showlegend": True,
            "margin": {"b": 70},
        },
        ("threshold", "layers", "validation_accuracy", "groups", "chosen"),
        [
            (threshold, widths, accuracy, solved.groups.get(f"{threshold:g}"),
             int((threshold, widths) == (solved.threshold, chosen)))
            for widths, curve in curves.items()
            for threshold, accuracy in curve.items()
        ],
    )  # fmt: skip


def _curves(solved: Solved) -> dict[str, dict[float, float]]:
    """The accuracies by widths of the layers and by threshold; what a log has that is no candidate is left out."""
    curves: dict[str, dict[float, float]] = {}
    for candidate, accuracy in solved.validation.items():
        threshold, _, widths = candidate.partition(" ")
        with suppress(ValueError):
            curves.setdefault(widths, {})[float(threshold)] = accuracy
    return {widths: dict(sorted(curve.items())) for widths, curve in curves.items() if curve}


def _of_groups(solved: Solved, threshold: float) -> str:
    count = solved.groups.get(f"{threshold:g}")
    return "" if count is None else f"<br>{count}"
