"""Numbers with their nouns, and lists of names."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 8


def count(number: int, one: str, many: str = "") -> str:
    """A number and its noun."""
    plural = many or (f"{one}es" if one.endswith("s") else f"{one}s")
    return f"{number:,} {one if number == 1 else plural}"


def names(sites: Sequence[str]) -> str:
    """The first few of many names."""
    shown = ", ".join(sites[:_NAMED])
    return f"{shown} and {len(sites) - _NAMED} more" if len(sites) > _NAMED else shown
