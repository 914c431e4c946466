"""Files of counts that a run writes about its last test: what is read from them is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.foreign import Unusable, read_json

MOST_SAMPLES = 2**40


class UnusableCounts(ValueError):
    """A file that cannot be what a run wrote; the message says why."""


def read_counts(path: Path, key: str, round_number: int) -> dict[str, Any]:
    """What the file holds under a key; nothing where it is missing or of another round."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, Unusable) as error:
        raise UnusableCounts(str(error)) from None
    if not isinstance(found, dict) or not isinstance(counted := found.get(key), dict):
        raise UnusableCounts(f"it holds no {key}")
    return counted if found.get("round") == round_number else {}


def whole_numbers(cells: object, width: int) -> list[list[int]]:
    """Rows of so many whole numbers, none of them negative or beyond any sense."""
    if not isinstance(cells, list):
        raise UnusableCounts("it has no list of counts")
    for cell in cells:
        if not isinstance(cell, list) or len(cell) != width or any(type(number) is not int for number in cell):
            raise UnusableCounts(f"a count is not {width} whole numbers")
        if not all(0 <= number <= MOST_SAMPLES for number in cell):
            raise UnusableCounts("a count is negative or too large")
    return cells
