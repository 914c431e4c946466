"""The schema of a table that all sites agree on: what its columns are called, what they may hold, how they are scaled.

With it a site turns its rows into numbers of about unit variance without knowing any other site's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from common.foreign import Unusable, parse_json, read_toml


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _number(value: object) -> object:
    # TOML and JSON write 1 for a number that happens to be whole.
    return float(value) if type(value) is int and abs(value) < 2**53 else value


Number = Annotated[float, BeforeValidator(_number)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_tuples)]
Numbers = Annotated[tuple[Number, ...], BeforeValidator(_tuples)]
Matrix = Annotated[tuple[tuple[Number, ...], ...], BeforeValidator(_tuples)]

_SUM_TOLERANCE = 1e-3


class InvalidTable(ValueError):
    """A schema that cannot be used; the message says what to change."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Column(_Strict):
    """One column: a number within a range, or one of some categories."""

    name: str = Field(min_length=1, description="as in the header of the file")
    minimum: Number | None = Field(None, description="smallest agreed value; a smaller one counts as this")
    maximum: Number | None = Field(None, description="largest agreed value; a larger one counts as this")
    mean: Number | None = Field(None, description="agreed mean; none: the middle of the range")
    spread: Number | None = Field(None, ge=0, description="agreed standard deviation; none: that of a uniform column")
    categories: Texts = Field((), description="the values of a column that holds no numbers")
    shares: Numbers = Field((), description="agreed share of each category; none: all equal")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        numeric = (self.minimum, self.maximum, self.mean, self.spread)
        if self.categories:
            if any(value is not None for value in numeric):
                raise ValueError(f"column {self.name!r} has categories and a range: it is one or the other")
            if len(set(self.categories)) != len(self.categories) or "" in self.categories:
                raise ValueError(f"column {self.name!r} names a category twice or an empty one")
            if self.shares and (
                len(self.shares) != len(self.categories)
                or min(self.shares) < 0
                or abs(sum(self.shares) - 1) > _SUM_TOLERANCE
            ):
                raise ValueError(f"column {self.name!r}: shares must be one per category and sum to 1")
            return self
        if self.shares:
            raise ValueError(f"column {self.name!r} has shares but no categories")
        if self.minimum is None or self.maximum is None:
            raise ValueError(f"column {self.name!r} needs minimum and maximum, or categories")
        if self.minimum > self.maximum:
            raise ValueError(f"column {self.name!r}: minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self

    @property
    def width(self) -> int:
        """Numbers it becomes: one, or one per category."""
        return len(self.categories) or 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of a numeric column."""
        assert self.minimum is not None
        assert self.maximum is not None
        return self.minimum, self.maximum

    @property
    def centre(self) -> float:
        """What a numeric column is centred by; it also stands in for a missing value."""
        low, high = self.bounds
        return (low + high) / 2 if self.mean is None else self.mean

    @property
    def scale(self) -> float:
        """What a numeric column is divided by; 1 for a constant one."""
        low, high = self.bounds
        spread = (high - low) / math.sqrt(12) if self.spread is None else self.spread
        return spread if spread > 0 else 1.0

    def one_hot(self) -> tuple[tuple[float, float], ...]:
        """Centre and scale of the indicator of each category."""
        shares = self.shares or (1 / len(self.categories),) * len(self.categories)
        return tuple((share, math.sqrt(share * (1 - share)) or 1.0) for share in shares)


class Table(_Strict):
    """The agreed schema of a table."""

    label: str = Field(min_length=1, description="the column that holds the class")
    classes: Texts = Field(min_length=2, description="agreed class list, in the order of the model's outputs")
    columns: Annotated[tuple[Column, ...], BeforeValidator(_tuples)] = Field(
        min_length=1, description="the columns to learn from; others in a file are not looked at"
    )
    group: str = Field("", description="column of what must stay on one side of the split, such as the patient")
    split: str = Field("", description="column that says train or test")
    correlations: Matrix = Field((), description="agreed correlations of the scaled columns; none: independent")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [column.name for column in self.columns] + [self.label, self.group, self.split]
        names = [name for name in names if name]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"column {twice!r} is named twice")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes names a class twice")
        if self.correlations and (
            len(self.correlations) != self.width
            or any(
                len(row) != self.width or any(abs(value) > 1 + _SUM_TOLERANCE for value in row)
                for row in self.correlations
            )
        ):
            raise ValueError(f"correlations must be {self.width} rows of {self.width} numbers from -1 to 1")
        return self

    @property
    def width(self) -> int:
        """Numbers m that a row becomes."""
        return sum(column.width for column in self.columns)


def read_table(text: str) -> Table | None:
    """Read a schema: the path of a TOML file, or the same as JSON; empty: none."""
    if not text:
        return None
    if text.lstrip().startswith("{"):
        try:
            return check_table(parse_json(text))
        except Unusable as error:
            raise InvalidTable(f"data.table is not valid JSON: {error}") from None
    try:
        found = read_toml(Path(text).expanduser())
    except OSError as error:
        raise InvalidTable(
            f"cannot read the table schema {text}: {error.strerror}; `coterie schema` drafts one"
        ) from None
    except Unusable as error:
        raise InvalidTable(f"{text} is not valid TOML: {error}") from None
    try:
        return check_table(found)
    except InvalidTable as error:
        raise InvalidTable(f"{text}: {error}") from None


def check_table(value: object) -> Table:
    """Turn a mapping into a schema, or say what is wrong with it."""
    try:
        return Table.model_validate(value)
    except ValidationError as error:
        raise InvalidTable("; ".join(_sentence(item) for item in error.errors())) from None


def write_table(table: Table | None) -> str:
    """The JSON that `read_table` reads; empty for none."""
    return table.model_dump_json(exclude_defaults=True) if table else ""


def _sentence(item: Any) -> str:
    where = ".".join(str(part + 1) if isinstance(part, int) else part for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error" or not where:
        return message
    return f"{where}: {message[:1].lower()}{message[1:]}"
