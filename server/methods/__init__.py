"""The registry of methods: one file each, one entry here."""

from __future__ import annotations

import difflib

from common.config import Config, SettingsError
from server.methods import dc, dc_cfl, fedavg, fedcm, fedprox, fmcl, local
from server.methods.method import Grouping, Method, Placement

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD for module in (fmcl, fedcm, dc_cfl, dc, fedavg, fedprox, local)
}


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


def check_method(config: Config) -> Method:
    """Return the method of a run, or say which of its settings do not go with it."""
    method, data = get_method(config.method), config.data
    rule = migration_rule(config)
    if not method.one_round:
        if data.input == "embedding":
            raise SettingsError(
                f"data.input = 'embedding' goes with the methods dc-cfl and dc, not with {method.name!r}"
            )
        if data.table is not None and method.fingerprint == "signature":
            raise SettingsError(
                f"method = {method.name!r} describes sites by images: on a table choose dc-cfl, dc, fedcm, fedavg, "
                "fedprox or local"
            )
        return method
    if data.table is None and data.input != "embedding":
        raise SettingsError(
            f"method = {method.name!r} learns from tables; for images set data.input = 'embedding', which takes the "
            "encoder's numbers in the place of pixels"
        )
    if config.cluster.k:
        raise SettingsError(f"cluster.k does not go with method = {method.name!r}: set cluster.threshold, or neither")
    if config.cluster.threshold > 1:
        raise SettingsError(f"cluster.threshold = {config.cluster.threshold:g}: total variation is never above 1")
    if rule != "off" or config.drift:
        raise SettingsError(f"method = {method.name!r} has a single round: no drift scenario and no migration rule")
    return method


__all__ = ["METHODS", "Grouping", "Method", "Placement", "check_method", "get_method", "migration_rule"]
