"""The registry of methods: one file each, one entry here."""

from __future__ import annotations

import difflib

from common.config import Config, SettingsError
from server.methods import fedavg, fedcm, fedprox, fmcl, local
from server.methods.method import Grouping, Method, Placement

METHODS: dict[str, Method] = {
    method.name: method for method in (fmcl.METHOD, fedcm.METHOD, fedavg.METHOD, fedprox.METHOD, local.METHOD)
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


__all__ = ["METHODS", "Grouping", "Method", "Placement", "get_method", "migration_rule"]
