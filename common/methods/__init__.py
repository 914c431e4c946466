"""What the two halves of a method agree on: its settings, and what travels beside the model. One file each.

A file here is found by itself, under the name that `server/methods` and `client/methods` have their halves under. A
method that has no settings of its own and sends nothing but the model needs none.
"""

from __future__ import annotations

import importlib
import pkgutil

from common.methods.agreement import Agreement, Question


def _found() -> dict[str, Agreement]:
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    agreements = [module.AGREEMENT for module in modules if hasattr(module, "AGREEMENT")]
    return {agreement.rule: agreement for agreement in agreements}


AGREEMENTS = _found()


def agreement_on(rule: str) -> Agreement:
    """What both sides agree on for a rule; the plain one where it declares nothing."""
    return AGREEMENTS.get(rule) or Agreement(rule, private=True)


__all__ = ["AGREEMENTS", "Agreement", "Question", "agreement_on"]
