"""What a setting takes, and what was wrong with a value, in words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from common.config.sections import METHODS
from common.drift import DriftEvent
from common.table import Table


def allowed(field: FieldInfo) -> str:
    """Say in words which values a setting takes."""
    annotation = field.annotation
    if annotation in (tuple[DriftEvent, ...], Table | None):
        return "a file, or its content as JSON"
    if NoneType in get_args(annotation):
        (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
    if choices := [choice for choice in get_args(annotation) if isinstance(choice, str | int)]:
        return "one of " + ", ".join(repr(choice) if choice == "" else str(choice) for choice in choices)
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(
        annotation,  # type: ignore[arg-type]
        "a list of names",
    )
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {limit}"
        for part in field.metadata
        for name, sign in words.items()
        if (limit := getattr(part, name, None)) is not None
    ]
    return " ".join([kind, *([", ".join(bounds)] if bounds else [])])


def unknown(key: str, value: object, known: list[str]) -> str:
    if key.startswith("drift."):
        return f"unknown setting {key} = {value!r}; a drift event is a table with two brackets: [[drift]]"
    # Someone who forgot or mistook the section still got the last part right.
    near = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if not near or not key.rpartition(".")[2]:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`coterie config` lists them all"
    return f"unknown setting {key} = {value!r}; {hint}"


def explained(item: Any, known: Mapping[str, FieldInfo]) -> str:
    key = ".".join(str(part) for part in item["loc"] if isinstance(part, str)).removeprefix(f"{METHODS}.")
    if key not in known:
        return str(item["msg"]).removeprefix("Value error, ")
    return f"{key} = {item['input']!r} is not allowed: it takes {allowed(known[key])} ({known[key].description})"
