"""Settings and schemas as TOML text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from common.config import Config, FlatValue, flat_values
from common.table import Table


def toml_value(value: FlatValue) -> str:
    """Write one scalar as TOML; JSON's strings, numbers and truth values are TOML too."""
    return json.dumps(value, ensure_ascii=False)


def toml_list(values: Iterable[Any]) -> str:
    """Write scalars as a TOML array on one line."""
    return f"[{', '.join(map(toml_value, values))}]"


def settings_toml(config: Config) -> str:
    """Write all settings as flat TOML keys, which is what Flower's run config knows."""
    return "\n".join(f"{key} = {toml_value(value)}" for key, value in flat_values(config).items())


def schema_toml(table: Table) -> str:
    """Write a schema as people read it: one block per column."""
    lines = [f"label = {toml_value(table.label)}", f"classes = {toml_list(table.classes)}"]
    lines += [f"{key} = {toml_value(value)}" for key in ("group", "split") if (value := getattr(table, key))]
    if table.correlations:
        lines += ["# of the scaled columns, in their order; one per category where there are categories"]
        lines += ["correlations = [", *(f"    {toml_list(row)}," for row in table.correlations), "]"]
    for column in table.columns:
        lines += ["", "[[columns]]"]
        for key, value in column.model_dump(exclude_defaults=True).items():
            lines.append(f"{key} = {toml_list(value) if isinstance(value, tuple) else toml_value(value)}")
    return "\n".join(lines) + "\n"
