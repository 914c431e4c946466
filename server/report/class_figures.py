"""Class by class: what each group's model takes for what, and which class a site is bad at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from common.readable import percent
from server.report.confusions import Confusion, Recall, recalls, weakest
from server.report.figure import Figure, label
from server.report.record import RunRecord

# More groups or classes than this are shown by the table alone.
MOST_GROUPS = 8
MOST_CLASSES = 40

Row = tuple[str | int | float | None, ...]

RECALL_COLUMNS = ("group", "class", "test samples", "recall", "at least", "at most", "mostly taken for")
WEAK_COLUMNS = ("site", "group", "test samples", "weakest class", "recall", "at least", "at most", "mostly taken for")


def by_group(record: RunRecord) -> dict[int, Confusion]:
    """The confusion matrix of each group's model over the test samples of its sites."""
    if record.last is None:
        return {}
    found: dict[int, Confusion] = {}
    for site, confusion in record.confusions.items():
        if (group := record.last.labels.get(site)) is not None:
            found[group] = found[group] + confusion if group in found else confusion
    return dict(sorted(found.items()))


def recall_rows(record: RunRecord, groups: Mapping[int, Confusion]) -> list[Row]:
    """One row per group and class, with Wilson's interval."""
    return [
        (f"{group}", record.classes[one.label], one.count, one.share, one.low, one.high, _mistaken(record, one))
        for group, confusion in groups.items()
        for one in recalls(confusion)
    ]


def weak_rows(record: RunRecord) -> list[Row]:
    """One row per site that errs: the class it is surest to be bad at, the worst first."""
    found = {site: weakest(confusion) for site, confusion in record.confusions.items()}
    failing = {site: one for site, one in found.items() if one is not None}
    labels = record.labels
    return [
        (site, labels.get(site), int(record.confusions[site].sum()),
         f"{record.classes[one.label]} ({one.hits} of {one.count})", one.share, one.low, one.high,
         _mistaken(record, one))
        for site, one in sorted(failing.items(), key=lambda item: (item[1].high, item[1].share, item[0]))
    ]  # fmt: skip


def _mistaken(record: RunRecord, one: Recall) -> str:
    return record.classes[one.mistaken] if one.mistaken >= 0 else ""


def confusion_figures(record: RunRecord, groups: Mapping[int, Confusion]) -> list[Figure]:
    """One matrix per group, where they can be read."""
    if len(groups) > MOST_GROUPS or len(record.classes) > MOST_CLASSES:
        return []
    return [_confusion(record, group, confusion) for group, confusion in groups.items()]


def _confusion(record: RunRecord, group: int, confusion: Confusion) -> Figure:
    # Classes that the group neither has nor names would only take room.
    present = np.flatnonzero(confusion.sum(axis=0) + confusion.sum(axis=1))
    shown = confusion[np.ix_(present, present)]
    shares = shown / np.maximum(shown.sum(axis=1, keepdims=True), 1)
    names = [label(record.classes[int(index)]) for index in present]
    count, hits = int(confusion.sum()), int(np.trace(confusion))
    heat: dict[str, Any] = {
        "type": "heatmap", "z": shares, "x": names, "y": names, "colorscale": "@scale", "zmin": 0, "zmax": 1,
        "xgap": 1, "ygap": 1, "customdata": shown,
        "hovertemplate": "%{y} taken for %{x}: %{customdata} samples, %{z:.0%} of the class<extra></extra>",
        "colorbar": {"tickformat": ".0%", "title": {"text": "of the class"}, "thickness": 12},
    }  # fmt: skip
    # Counts in the cells, as long as they can be read.
    if len(present) <= 12:
        heat |= {"text": [[str(n) if n else "" for n in row] for row in shown.tolist()], "texttemplate": "%{text}"}
    return Figure(
        f"confusion-{group}",
        f"Group {group}: what is taken for what",
        "One row per true class, one column per class that the model names; a cell says how many test samples, its "
        "colour which share of the class. All on the diagonal would be right.",
        f"Group {group} classifies {hits} of {count} test samples correctly ({percent(hits / max(count, 1))}).",
        [heat],
        {
            "xaxis": {"type": "category", "automargin": True, "title": {"text": "named"}, "showgrid": False},
            "yaxis": {"type": "category", "automargin": True, "autorange": "reversed", "title": {"text": "true"},
                      "showgrid": False},
            "height": max(260, min(150 + 34 * len(names), 720)),
        },
        ("true class", *[record.classes[int(index)] for index in present]),
        [(record.classes[int(index)], *map(int, row)) for index, row in zip(present, shown, strict=True)],
    )  # fmt: skip
