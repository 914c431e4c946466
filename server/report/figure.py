"""What a figure is: a drawing for Plotly, a sentence on how to read it, and its data as a table."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cell = str | int | float | None

# More labels than this along an axis cannot be read; the site is named when it is pointed at.
MOST_LABELS = 60


@dataclass(frozen=True)
class Figure:
    """One figure of the page.

    Attributes
    ----------
    name
        Its id in the page and the name of its CSV file.
    title, reading, finding
        Heading; how to read it; what it shows in one sentence, for those who do not see it.
    data, layout
        Plotly's traces and layout, with colours as tokens.
    columns, rows
        Its data. Empty for a matrix, whose table the page makes from the trace itself.
    """

    name: str
    title: str
    reading: str
    finding: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: tuple[str, ...] = ()
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def drawing(self) -> dict[str, Any]:
        """What the page's script needs, ready for JSON."""
        return {
            "name": self.name,
            "data": [_plain(trace) for trace in self.data],
            "layout": _plain(self.layout),
            "columns": list(self.columns),
            "rows": [[_plain(cell) for cell in row] for row in self.rows],
        }


def label(text: str) -> str:
    """Foreign text for a drawing: Plotly reads a few HTML tags in the text it is given."""
    return html.escape(text, quote=False)


def share_triangle(matrix: NDArray[np.float64]) -> dict[str, Any]:
    """A symmetric matrix of shares in [0, 1] for the page to unfold: steps of 1/250, 255 standing for NaN."""
    upper = matrix[np.triu_indices(len(matrix))]
    return _packed(np.where(np.isnan(upper), 255, np.rint(np.nan_to_num(upper) * 250)).astype(np.uint8), len(matrix))


def cosine_triangle(matrix: NDArray[np.float64]) -> dict[str, Any]:
    """A symmetric matrix of cosines for the page to unfold: 65,535 equal steps from −1 to 1."""
    upper = matrix[np.triu_indices(len(matrix))]
    return _packed(np.rint((upper + 1) / 2 * 65_534).astype("<u2"), len(matrix)) | {"cosine": True}


def distance_triangle(matrix: NDArray[np.float64], low: float, high: float) -> dict[str, Any]:
    """A symmetric matrix of distances for the page to unfold: 0, or low to high in 65,534 equal steps of the logarithm.

    So a distance is off by a few ten-thousandths at most, at half the size of a float: a page about 1,000 sites holds
    half a million of them.
    """
    upper = matrix[np.triu_indices(len(matrix))]
    span = math.log(high / low) or 1.0
    steps = np.log(np.clip(upper, low, high) / low) / span * 65_534
    packed = np.where(upper > 0, 1 + np.rint(steps), 0).astype("<u2")
    return _packed(packed, len(matrix)) | {"low": low, "span": span}


def _packed(upper: NDArray[Any], size: int) -> dict[str, Any]:
    """The upper triangle with the diagonal, row by row, in base64."""
    return {"triangle": base64.b64encode(upper.tobytes()).decode("ascii"), "size": size}


def site_axis(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """An axis along which sites stand one by one."""
    shown = len(names) <= MOST_LABELS
    ticks = {"tickvals": list(range(len(names))), "ticktext": [label(name) for name in names]} if shown else {}
    return {
        "type": "linear", "range": [-0.6, len(names) - 0.4], "showticklabels": shown, "showgrid": False,
        "zeroline": False, "automargin": True, "tickangle": "auto",
        "ticks": "outside" if shown else "", **ticks, **more,
    }  # fmt: skip


def round_axis(first: int, last: int) -> dict[str, Any]:
    """An axis of rounds, from a little before the first to a little after the last; ticks are at whole rounds."""
    steps = (size * power for power in (1, 10, 100, 1000) for size in (1, 2, 5))
    step = next((step for step in steps if (last - first) / step <= 10), 10_000)
    margin = 0.03 * max(last - first, 1)
    return {
        "title": {"text": "round"}, "range": [first - margin, last + margin], "tick0": 0, "dtick": step,
        "zeroline": False,
    }  # fmt: skip


def percent_axis(**more: Any) -> dict[str, Any]:
    """An axis of shares from 0 to 1, written as percentages."""
    return {"tickformat": ".0%", "range": [-0.03, 1.05], "zeroline": False, "automargin": True, **more}


def _plain(value: Any) -> Any:
    """Round to what an eye can see, and write what is not a number as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
