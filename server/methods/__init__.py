"""The registry of methods: one file each, one entry here."""

from __future__ import annotations

import difflib

from common.config import Config, SettingsError, with_values
from server.methods import cfl, fecfl, fedavg, fedcm, fedprox, fmcl, ifca, local, pacfl
from server.methods.method import Grouping, Method, Placement

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        fmcl.METHOD, fmcl.FIXED_K, fmcl.WITHOUT_OVERLAP, fedcm.METHOD,
        fecfl.METHOD, fecfl.WITH_FOUNDATION_MODEL, pacfl.METHOD, pacfl.WITH_FOUNDATION_MODEL,
        cfl.METHOD, ifca.METHOD, fedavg.METHOD, fedprox.METHOD, local.METHOD,
    )
}  # fmt: skip


def settle(config: Config) -> Config:
    """Return the configuration with the values that its method fixes, or say why the two do not go together."""
    method = get_method(config.method)
    config = with_values(config, method.settings)
    if method.needs_k and not config.cluster.k:
        raise SettingsError(f"method = {method.name!r} needs cluster.k, the number of groups")
    migration_rule(config)
    return config


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


__all__ = ["METHODS", "Grouping", "Method", "Placement", "get_method", "migration_rule", "settle"]
