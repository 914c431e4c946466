"""Settings as flat keys (`train.lr`), which is what Flower's run config holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from common.config.run import Config
from common.config.sections import METHOD_SECTIONS, METHODS, FlatValue
from common.drift import write_scenario
from common.table import write_table


def fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as (flat key, field), in the order of the sections."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            # A method's section stands beside the others.
            yield from fields(field.annotation, prefix if name == METHODS else f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into flat dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def flat_settings(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a dumped configuration into flat keys."""
    rest = {key: value for key, value in dump.items() if key != METHODS}
    return flatten(rest) | flatten(dump.get(METHODS, {}))


def flatten_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys, with a table's schema left whole: it is one setting."""
    data = values.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("table"), Mapping):
        return flatten(values)
    rest = {**values, "data": {key: value for key, value in data.items() if key != "table"}}
    return flatten(rest) | {"data.table": data["table"]}


def flat_values(config: Config) -> dict[str, FlatValue]:
    """Return the configuration as Flower run config: flat keys, scalar values."""
    dump = config.model_dump()
    dump["data"]["table"] = write_table(config.data.table)
    flat = flat_settings(dump) | {"drift": write_scenario(config.drift)}
    return {key: ",".join(value) if isinstance(value, tuple | list) else value for key, value in flat.items()}


def with_values(config: Config, values: Mapping[str, FlatValue]) -> Config:
    """Return a configuration in which some settings, by flat key, have other values, known to be allowed."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section in METHOD_SECTIONS:
            part = getattr(config.methods, section).model_copy(update={name: value})
            config = config.model_copy(update={METHODS: config.methods.model_copy(update={section: part})})
        elif section:
            part = getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={section: part})
        else:
            config = config.model_copy(update={name: value})
    return config
