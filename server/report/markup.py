"""Small pieces of HTML. Everything that is text is escaped here, and only here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from common.readable import percent
from server.report.figure import Figure
from server.report.palette import SYMBOLS

Cell = str | int | float | None

# Characters that look like Plotly's marker shapes, in the same order.
_SHAPES = dict(zip(SYMBOLS, "●■◆▲✚★⬢", strict=True))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def figure(one: Figure) -> str:
    """A figure with heading, reading and CSV button; the page's script draws it."""
    name = escape(one.name)
    return (
        f'<figure aria-labelledby="{name}-title" aria-describedby="{name}-reading"><div class="top">'
        f'<h3 id="{name}-title">{escape(one.title)}</h3>'
        f'<button type="button" data-csv="{name}" aria-label="Download the data of “{escape(one.title)}” as CSV">'
        f"Data as CSV</button></div>"
        f'<figcaption id="{name}-reading">{escape(one.reading)}</figcaption>'
        f'<div class="plot" id="{name}" role="img" aria-label="{escape(one.finding)}"'
        f' style="height:{int(one.layout.get("height", 400))}px"></div></figure>'
    )


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str,
    percent: Sequence[str] = (),
    wide: Sequence[str] = (),
    highlight: int | None = None,
) -> str:
    """A table whose columns can be sorted; the first column names the row.

    `percent` columns hold shares, `wide` ones long text; `highlight` is the row that the page is about.
    """
    body = []
    numeric = set(columns)
    for index, row in enumerate(rows):
        cells = []
        for column, value in zip(columns, row, strict=True):
            if isinstance(value, str):
                numeric.discard(column)
            shown, key = _shown(value, is_share=column in percent)
            tag, scope = ("th", " scope=row") if column == columns[0] else ("td", "")
            kind = "why" if column in wide else "" if isinstance(value, str) else "n"
            sort_key = f' data-value="{key}"' if key else ""
            cells.append(f"<{tag}{scope}{_class(kind)}{sort_key}>{escape(shown)}</{tag}>")
        mark = ' class="subject"' if index == highlight else ""
        body.append(f"<tr{mark}>{''.join(cells)}</tr>")
    head = "".join(
        f'<th scope="col"{_class("n" if body and column in numeric else "")}>'
        f'<button type="button">{escape(column)}</button></th>'
        for column in columns
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """The few numbers that matter, large: (number, what it is)."""
    return (
        f'<ul class="tiles">{"".join(f"<li><b>{escape(n)}</b><span>{escape(w)}</span></li>" for n, w in values)}</ul>'
    )


def group_chip(group: int, symbol: str, colour: str) -> str:
    """A group's number with its shape and colour."""
    return f'<span class="chip" style="color:var(--{escape(colour.lstrip("@"))})">{_SHAPES[symbol]} {group}</span>'


def _class(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""


def _shown(value: Cell, *, is_share: bool) -> tuple[str, str]:
    """A cell as it is read, and the key it is sorted by, if that is another."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–", ""
    if isinstance(value, str):
        return value, ""
    if is_share:
        return percent(value), f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}", str(value)
    return f"{value:.3g}", f"{value:.6g}"
