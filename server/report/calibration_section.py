"""The section on probabilities: do they mean what they say, and where to draw the line between two classes."""

from __future__ import annotations

from typing import Any

from common.calibration import STEPS, classwise_calibration_error, operating_point, reliability
from common.readable import percent
from server.report.figure import Figure
from server.report.markup import paragraph, table
from server.report.palette import group_colour, group_dash, group_symbol
from server.report.record import RunRecord
from server.report.section import MOST_ROWS, Section

SPECIFICITY = 0.95
_MOST_GROUPS = 8
_POINT_COLUMNS = (
    "group", "class", "named from", "sensitivity", "at least", "at most", "specificity", "test samples of the class"
)  # fmt: skip


def calibration_section(record: RunRecord) -> Section:
    """Probabilities of the groups' models in the last round that was tested."""
    section = Section("calibration-section", "Probabilities")
    section.body = paragraph(
        "A probability is worth something if it comes true as often as it says. The error is the mean distance between "
        "the two, class by class (classwise ECE): 0 is best."
    )
    rows = [(f"{group}", classwise_calibration_error(counts)) for group, counts in sorted(record.scores.items())]
    section.body += table(("group", "calibration error"), rows[:MOST_ROWS], caption="Calibration by group")
    if len(record.scores) <= _MOST_GROUPS:
        section.show(_reliability(record))
    if len(record.classes) == 2:
        section.body += _operating_points(record)
    return section


def _reliability(record: RunRecord) -> Figure:
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "name": "as it should be",
            "line": {"color": "@line", "width": 1, "dash": "dot"}, "hoverinfo": "skip",
        }
    ]  # fmt: skip
    rows: list[tuple[str | int | float | None, ...]] = []
    for group, counts in sorted(record.scores.items()):
        steps = reliability(counts)
        rows += [(f"{group}", step.probability, step.share, step.count) for step in steps]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": f"group {group}",
                "x": [step.probability for step in steps], "y": [step.share for step in steps],
                "customdata": [step.count for step in steps],
                "line": {"color": group_colour(group), "dash": group_dash(group)},
                "marker": {"symbol": group_symbol(group), "size": 8, "color": group_colour(group)},
                "hovertemplate": "says %{x:.0%}, is so %{y:.0%}; %{customdata} scores<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    worst = max((classwise_calibration_error(counts), group) for group, counts in record.scores.items())
    return Figure(
        "reliability",
        "Do probabilities come true?",
        f"Scores of all classes in {STEPS} steps: what the model says, and how often it is so. Below the dotted line a "
        "model says more than it knows.",
        f"The largest calibration error is {percent(worst[0])}, in group {worst[1]}.",
        traces,
        {
            "xaxis": {"title": {"text": "probability that the model gives"}, "range": [0, 1], "tickformat": ".0%"},
            "yaxis": {"title": {"text": "how often it is so"}, "range": [0, 1], "tickformat": ".0%"},
            "height": 420,
        },
        ("group", "probability", "share", "scores"),
        rows,
    )


def _operating_points(record: RunRecord) -> str:
    found = [
        (
            f"{group}",
            record.classes[label],
            one.threshold,
            one.sensitivity,
            one.low,
            one.high,
            one.specificity,
            one.count,
        )
        for group, counts in sorted(record.scores.items())
        for label in range(2)
        if (one := operating_point(counts, label, SPECIFICITY)) is not None
    ]
    shares = ("named from", "sensitivity", "at least", "at most", "specificity")
    return (
        f"<h3>Sensitivity at {SPECIFICITY:.0%} specificity</h3>"
        + paragraph(
            "A class is named from this probability on, the lowest at which "
            f"{SPECIFICITY:.0%} of the other class's test samples are spared. The line is drawn on the same samples "
            "that it is judged by: with few of them expect a little less. “At least” and “at most” as above."
        )
        + table(_POINT_COLUMNS, found[:MOST_ROWS], caption="Operating points", percent=shares)
    )
