"""From a TOML file, nested tables or flat keys to a `Config`, or a `SettingsError` that says what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from common.config.flat import fields, flatten_settings
from common.config.run import Config
from common.config.sections import METHOD_SECTIONS, METHODS, FlatValue, SettingsError
from common.config.words import explained, unknown
from common.drift import InvalidScenario, check_scenario, read_scenario
from common.foreign import Unusable, parse_toml, read_toml
from common.table import InvalidTable, check_table, read_table


def parse(values: Mapping[str, Any]) -> Config:
    """Validate settings given as nested tables, flat keys, or both."""
    flat = flatten_settings(values)
    known = dict(fields())
    for key, value in flat.items():
        if key not in known:
            raise SettingsError(unknown(key, value, list(known)))
    if "drift" in flat:
        scenario = flat["drift"]
        try:
            # Only here, where a run is set up: a site is told the events and never reads a file it is told of.
            flat["drift"] = read_scenario(scenario) if isinstance(scenario, str) else check_scenario(scenario)
        except InvalidScenario as error:
            raise SettingsError(str(error)) from None
    if "data.table" in flat:
        table = flat["data.table"]
        try:
            flat["data.table"] = read_table(table) if isinstance(table, str) else table and check_table(table)
        except InvalidTable as error:
            raise SettingsError(str(error)) from None
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        place = nested.setdefault(METHODS, {}) if section in METHOD_SECTIONS else nested
        target = place.setdefault(section, {}) if section else place
        # TOML and Flower write 1 for a float that happens to be whole.
        wants_float = known[key].annotation is float
        target[name] = float(value) if wants_float and type(value) is int and abs(value) < 2**53 else value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise SettingsError("\n".join(explained(item, known) for item in error.errors())) from None


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file; `overrides` (flat keys) win over it."""
    try:
        table = read_toml(path)
    except OSError as error:
        raise SettingsError(f"cannot read the configuration {path}: {error.strerror}") from None
    except Unusable as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    return parse(flatten_settings(table) | dict(overrides or {}))


def parse_override(text: str) -> tuple[str, FlatValue]:
    """Read `key=value` of the command line; the value is TOML, or else a plain string."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise SettingsError(f"--set takes key=value, not {text!r}")
    try:
        value = parse_toml(f"value = {raw}")["value"]
    except Unusable:
        value = raw
    return key, value
