"""Lines of words under each other, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from common.readable import duration


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are as wide as what is in them; the last may be of any length."""
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (head, *rows)
    )


def ago(moment: str, now: datetime | None = None) -> str:
    """How long ago something was, of which Flower writes the time."""
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return "–"
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return duration(max(((now or datetime.now(UTC)) - then).total_seconds(), 0.0))


def local_time(moment: str) -> str:
    """A time that Flower writes, on the clock of whoever reads it."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return "–"
