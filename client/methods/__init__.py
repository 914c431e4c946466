"""What sites do in a round, one file for each rule that is not plain FedAvg. A file is found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from client.methods.method import SiteMethod, Trained, Visit
from common import wire
from common.methods import AGREEMENTS, agreement_on

PLAIN = "fedavg"
_FILES = {module.name for module in pkgutil.iter_modules(__path__)} - {"method"}


# Looked up several times for every message.
@lru_cache(maxsize=8)
def site_method(rule: str) -> SiteMethod:
    """Return the site's half of a rule. What is not known here is never imported: the name comes from the server."""
    name = rule.replace("-", "_")
    if name in _FILES:
        made: SiteMethod = importlib.import_module(f"{__name__}.{name}").SITE(agreement_on(rule))
        return made
    if rule == PLAIN or rule in AGREEMENTS:
        return SiteMethod(agreement_on(rule))
    raise wire.WireError(f"this site knows no rule {wire.plain_text(rule)!r}: update it")


__all__ = ["SiteMethod", "Trained", "Visit", "site_method"]
