"""A draft of a table's schema from one file, for people to agree on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection

import numpy as np

from client.data.tables import Cells, as_numbers, is_missing, scale
from common.config import SettingsError
from common.table import Column, InvalidTable, Table, check_table

# A column of text with more different values than this is a name or a note, not a category.
MOST_CATEGORIES = 50
_DIGITS = 3


def draft_schema(cells: Cells, label: str, *, group: str = "", split: str = "", drop: Collection[str] = ()) -> Table:
    """Describe the columns of a file: ranges, means and spreads to three digits, categories, correlations.

    Ranges are widened outwards, so that no end of one is anybody's own value.
    """
    for name in (label, group, split, *drop):
        if name and name not in cells:
            raise SettingsError(f"there is no column {name!r}; the columns are {', '.join(cells)}")
    classes = sorted({text for text in cells[label] if not is_missing(text)})
    columns = [_column(name, cells) for name in cells if name not in {label, group, split, *drop}]
    draft = {"label": label, "classes": classes, "columns": columns, "group": group, "split": split}
    try:
        table = check_table(draft)
        rows = scale(table, cells, []).astype(np.float64)
        if table.width > 1 and len(rows) > table.width:
            return check_table({**draft, "correlations": _correlations(rows)})
    except InvalidTable as error:
        raise SettingsError(f"no schema can be drafted: {error}") from None
    return table


def _column(name: str, cells: Cells) -> Column:
    texts = [text for text in cells[name] if not is_missing(text)]
    values = as_numbers(texts)
    if not texts:
        raise SettingsError(f"column {name!r} holds nothing: leave it out with --drop {name}")
    if not np.isnan(values).any():
        return Column(
            name=name,
            minimum=_rounded(float(values.min()), math.floor),
            maximum=_rounded(float(values.max()), math.ceil),
            mean=_rounded(float(values.mean()), round),
            spread=_rounded(float(values.std()), round),
        )
    counts = Counter(texts)
    if len(counts) > MOST_CATEGORIES:
        raise SettingsError(
            f"column {name!r} holds {len(counts)} different texts, more than {MOST_CATEGORIES}. If it says whose "
            f"row it is (a patient), write --group {name}: such rows stay together. Else leave it out with "
            f"--drop {name}, or clean it"
        )
    categories = sorted(counts)
    shares = [round(counts[category] / len(texts), _DIGITS) for category in categories]
    # What rounding lost or won goes to the most frequent one.
    shares[int(np.argmax(shares))] += round(1 - sum(shares), _DIGITS)
    return Column(name=name, categories=tuple(categories), shares=tuple(shares))


def _rounded(value: float, direction: Callable[[float], int]) -> float:
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
    return float(f"{direction(value / unit) * unit:.12g}")


def _correlations(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[list[float]]:
    spread = rows.std(axis=0)
    constant = spread == 0
    centred = (rows - rows.mean(axis=0)) / np.where(constant, 1.0, spread)
    correlations = centred.T @ centred / len(rows)
    correlations[constant, constant] = 1.0
    return [[round(float(value), _DIGITS) for value in row] for row in np.clip(correlations, -1, 1)]
