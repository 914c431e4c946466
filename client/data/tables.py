"""Tables: CSV or Parquet files with a label column, scaled by the agreed schema."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.files import SPLITS, class_index
from client.data.samples import UNSPECIFIED, Fault, TableSamples
from common.config import SettingsError
from common.foreign import Unusable, named_faults, read_csv
from common.table import Column, Table

Cells = Mapping[str, Sequence[str]]

_MOST_CELLS = 500_000_000  # of a Parquet file, where a few bytes can stand for any number of rows
# What spreadsheets, R and pandas write for a value that is not there.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


SITE = "site"  # column that says whose a row is, in a table that holds the rows of several


def read_table_samples(path: Path, table: Table, classes: Mapping[str, int], *, by_site: bool = False) -> TableSamples:
    """Read the columns of the schema; a row without a label is left out and named, a missing value is counted.

    A missing number counts as the agreed mean, an unknown or missing category as none of them, a number outside the
    agreed range as the nearest end of it. `by_site`: a column says whose each row is.
    """
    wanted = [column.name for column in table.columns] + [table.label, table.group, table.split, SITE * by_site]
    cells = read_columns(path, [name for name in wanted if name])
    faults: list[Fault] = []
    rows = scale(table, cells, faults)
    labels = np.full(len(rows), -1, np.int64)
    for row, name in enumerate(cells[table.label]):
        if is_missing(name):
            faults.append(Fault(f"line {row + 2}", "has no label"))
        else:
            labels[row] = class_index(name, classes, f"{path}, line {row + 2}")
    kept = np.flatnonzero(labels >= 0)
    digest = hashlib.sha256(str(rows.shape).encode())
    for part in (rows[kept], labels[kept]):
        digest.update(np.ascontiguousarray(part).data)
    return TableSamples(
        labels=labels[kept],
        groups=_groups(cells[table.group], kept) if table.group else None,
        splits=np.array([_split(cells[table.split][row], path, row) for row in kept.tolist()], np.int8)
        if table.split
        else np.full(len(kept), UNSPECIFIED, np.int8),
        digest=digest.hexdigest(),
        faults=tuple(faults),
        rows=rows[kept],
        lines=kept.astype(np.int64) + 2,
        sites=np.array(cells[SITE], np.str_)[kept] if by_site else None,
    )


def read_rows(path: Path, table: Table, name_column: str = "") -> TableSamples:
    """The scaled columns of a file that nobody has labelled; its faults tell what is missing in them.

    A row is called as `name_column` says, if one is named, and else by its line.
    """
    faults: list[Fault] = []
    names = [column.name for column in table.columns]
    cells = read_columns(path, [*names, *([name_column] if name_column and name_column not in names else [])])
    rows = scale(table, cells, faults)
    return TableSamples(
        labels=np.zeros(len(rows), np.int64),
        groups=None,
        splits=np.full(len(rows), UNSPECIFIED, np.int8),
        digest="",
        faults=tuple(faults),
        rows=rows,
        lines=np.arange(len(rows), dtype=np.int64) + 2,
        ids=tuple(cells[name_column]) if name_column else (),
    )


def read_public_rows(path: Path, table: Table) -> NDArray[np.float32]:
    """The scaled columns of a file that everybody may see; it needs no labels."""
    rows = scale(table, read_columns(path, [column.name for column in table.columns]), [])
    if len(rows) < 2:
        raise SettingsError(f"{path} has {len(rows)} rows: at least two are needed to interpolate between")
    return rows


def scale(table: Table, cells: Cells, faults: list[Fault]) -> NDArray[np.float32]:
    """Turn columns of text into float32[n, m] of about unit variance; what is missing is counted in `faults`."""
    parts = [
        _indicators(column, cells[column.name], faults)
        if column.categories
        else _numbers(column, cells[column.name], faults)
        for column in table.columns
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def is_missing(text: str) -> bool:
    """Whether a cell holds nothing."""
    return text.strip().lower() in MISSING


def as_numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """Read numbers; NaN where there is none."""
    values = np.full(len(texts), np.nan)
    for row, text in enumerate(texts):
        try:
            values[row] = float(text)
        except ValueError:
            continue
    values[np.isinf(values)] = np.nan
    return values


def _numbers(column: Column, texts: Sequence[str], faults: list[Fault]) -> NDArray[np.float64]:
    values = as_numbers(texts)
    missing = np.isnan(values)
    low, high = column.bounds
    outside = (values < low) | (values > high)
    _count(faults, column, missing, "are missing or no numbers: the agreed mean stands in")
    _count(faults, column, outside, f"are outside the agreed range {low:g} to {high:g}: the nearest end stands in")
    values = np.where(missing, column.centre, np.clip(values, low, high))
    return ((values - column.centre) / column.scale)[:, np.newaxis]


def _indicators(column: Column, texts: Sequence[str], faults: list[Fault]) -> NDArray[np.float64]:
    known = {name: place for place, name in enumerate(column.categories)}
    places = np.array([known.get(text, -1) for text in texts], np.int64)
    gone = np.array([text not in known and is_missing(text) for text in texts], np.bool_)
    _count(faults, column, gone, "are missing: no category stands in")
    _count(faults, column, (places < 0) & ~gone, "are not among the agreed categories: none stands in")
    values = np.zeros((len(texts), column.width))
    for place, (centre, scale_) in enumerate(column.one_hot()):
        values[:, place] = np.where(places < 0, 0.0, ((places == place) - centre) / scale_)
    return values


def _count(faults: list[Fault], column: Column, hits: NDArray[np.bool_], what: str) -> None:
    if count := int(hits.sum()):
        faults.append(Fault(f"column {column.name}", f"{count} of {len(hits)} values {what}"))


def _groups(texts: Sequence[str], kept: NDArray[np.intp]) -> NDArray[np.str_]:
    # A row without a group is one of its own.
    return np.array([texts[row] or f"line {row + 2}" for row in kept], np.str_)


def _split(text: str, path: Path, row: int) -> int:
    wish = text.strip().lower()
    if wish and wish not in SPLITS:
        raise SettingsError(f"{path}, line {row + 2}: split {text!r} is not one of {', '.join(SPLITS)}")
    return SPLITS.get(wish, UNSPECIFIED)


# --- files -----------------------------------------------------------------------------------------------------


def read_columns(path: Path, names: Sequence[str] | None = None) -> dict[str, list[str]]:
    """The named columns of a .csv or .parquet file as text, or all of them; missing cells are empty."""
    read = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
    return read(path, names)


def _read_csv(path: Path, names: Sequence[str] | None) -> dict[str, list[str]]:
    try:
        rows = read_csv(path)
        header = [cell.strip() for cell in next(rows, (0, []))[1]]
        names = _require(header, header if names is None else names, path)
        places = [header.index(name) for name in names]
        columns: list[list[str]] = [[] for _ in names]
        for _, cells in rows:
            for column, place in zip(columns, places, strict=True):
                column.append(cells[place].strip() if place < len(cells) else "")
    except (OSError, Unusable) as error:
        raise SettingsError(f"cannot read the table {path}: {error}") from None
    return dict(zip(names, columns, strict=True))


def _read_parquet(path: Path, names: Sequence[str] | None) -> dict[str, list[str]]:
    try:
        # An extra: most sites have CSV files, and the library is large.
        from pyarrow import parquet
    except ImportError:
        raise SettingsError(
            f"{path} is a Parquet file: `pip install coterie[parquet]` reads it, or write CSV"
        ) from None
    try:
        with named_faults():
            kept = parquet.read_metadata(path)
            if kept.num_rows * kept.num_columns > _MOST_CELLS:
                raise Unusable(f"it declares {kept.num_rows} rows of {kept.num_columns} columns")
            header = parquet.read_schema(path).names
        names = _require(header, header if names is None else names, path)
        with named_faults():
            read = parquet.read_table(path, columns=list(names))
            return {name: [_text(value) for value in read.column(name).to_pylist()] for name in names}
    except (OSError, Unusable) as error:
        raise SettingsError(f"cannot read the table {path}: {error}") from None


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _require(header: Sequence[str], names: Sequence[str], path: Path) -> Sequence[str]:
    if missing := [name for name in names if name not in header]:
        raise SettingsError(
            f"{path} has no column {', '.join(map(repr, missing))} of the agreed schema; its columns are "
            f"{', '.join(header) or 'none'}"
        )
    return names
