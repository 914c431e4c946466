"""The methods, one file each: a file that has `METHODS` is found by itself."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_args

from common.config import Config, SettingsError, TrainSettings, with_values
from common.encoders import COLUMNS, HEADS
from server.methods.method import Family, Grouping, Method, Placement

_FAMILIES = get_args(Family)


def _found() -> Iterator[Method]:
    for module in pkgutil.iter_modules(__path__):
        yield from getattr(importlib.import_module(f"{__name__}.{module.name}"), "METHODS", ())


# By family, and in a family by name.
METHODS: dict[str, Method] = {
    method.name: method for method in sorted(_found(), key=lambda method: (_FAMILIES.index(method.family), method.name))
}


def settle(config: Config) -> Config:
    """Return the configuration with the values that its method fixes, or say why the two do not go together."""
    method = get_method(config.method)
    config = with_values(config, method.settings)
    if method.needs_k and not config.cluster.k:
        raise SettingsError(f"method = {method.name!r} needs cluster.k, the number of groups")
    rule = migration_rule(config)
    columns = config.encoder.name == COLUMNS
    if columns and config.data.table is None:
        raise SettingsError("encoder.name = 'columns' reads a table: set data.source = 'table' and data.table")
    if config.data.table is not None and config.train.model not in (("mlp", *HEADS) if columns else ("mlp",)):
        raise SettingsError(
            f"train.model = {config.train.model!r} reads images: a table needs 'mlp', or a head with "
            "encoder.name = 'columns'"
        )
    if _is_all_head(config.train) and method.name == "fedper":
        raise SettingsError(
            f"train.model = {config.train.model!r} learns a head alone, which fedper never sends: take 'head-mlp', or "
            "of timm:<name> tune more, or method = 'local'"
        )
    if not method.one_round:
        _check_inputs(config, method)
        return config
    _check_one_round(config, method, rule)
    return config.model_copy(update={"rounds": min(config.rounds, 1)})


def _is_all_head(train: TrainSettings) -> bool:
    return train.model == "head" or (train.model.startswith("timm:") and train.tune in ("", "head"))


def get_method(name: str) -> Method:
    """Look a method up, or tell which ones there are."""
    try:
        return METHODS[name]
    except KeyError:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"method = {name!r} is not known: it takes one of {', '.join(METHODS)}{hint}") from None


def migration_rule(config: Config) -> str:
    """The rule by which sites of a run change groups: "off", "guarded" or "fedcm"."""
    method, rule = get_method(config.method), config.migration.rule
    if rule == "auto":
        return method.migration
    if rule != "off" and not method.clustered:
        raise SettingsError(
            f"migration.rule = {rule!r} does not go with method = {method.name!r}, which has no groups to move "
            "between: set it to 'off' or 'auto'"
        )
    return rule


def _check_inputs(config: Config, method: Method) -> None:
    if config.data.input == "embedding":
        raise SettingsError(f"data.input = 'embedding' goes with the methods dc-cfl and dc, not with {method.name!r}")
    if config.data.table is not None and method.reads_images and config.encoder.name != COLUMNS:
        raise SettingsError(
            f"method = {method.name!r} describes sites by an encoder's numbers: on a table set "
            "encoder.name = 'columns', which takes the scaled columns in their place"
        )


def _check_one_round(config: Config, method: Method, rule: str) -> None:
    if config.data.table is None and config.data.input != "embedding":
        raise SettingsError(
            f"method = {method.name!r} learns from tables; for images set data.input = 'embedding', which takes the "
            "encoder's numbers in the place of pixels"
        )
    if config.train.model in HEADS:
        raise SettingsError(f"method = {method.name!r} trains an mlp of its own: train.model = 'mlp'")
    if config.cluster.k:
        raise SettingsError(f"cluster.k does not go with method = {method.name!r}: set cluster.threshold, or neither")
    if config.cluster.threshold > 1:
        raise SettingsError(f"cluster.threshold = {config.cluster.threshold:g}: total variation is never above 1")
    if rule != "off" or config.drift or config.personalise != "none":
        raise SettingsError(
            f"method = {method.name!r} has a single round: no drift scenario, no migration rule, no personalise"
        )


__all__ = ["METHODS", "Grouping", "Method", "Placement", "get_method", "migration_rule", "settle"]
