"""The registry of methods: one file each, one entry here."""

from __future__ import annotations

import difflib

from common.config import SettingsError
from server.methods import fedavg, fedcm, fmcl, local
from server.methods.method import Grouping, Method, Placement

METHODS: dict[str, Method] = {
    method.name: method for method in (fmcl.METHOD, fedcm.METHOD, fedavg.METHOD, local.METHOD)
}


def get_method(name: str) -> Method:
    """Look a method up, or tell which ones there are."""
    try:
        return METHODS[name]
    except KeyError:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"method = {name!r} is not known: it takes one of {', '.join(METHODS)}{hint}") from None


__all__ = ["METHODS", "Grouping", "Method", "Placement", "get_method"]
