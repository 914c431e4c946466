"""Policies of sites in tests that are not about policies."""

from __future__ import annotations

import json

# Sites of a handful of samples take part in everything.
LENIENT: dict[str, object] = {
    "fingerprints": ["any"],
    "encoders": ["any"],
    "class_samples": 1,
    "train_samples": 1,
    "test_samples": 0,
    "test_fraction": None,
    "split_seed": None,
    "fingerprints_a_day": 1000,
    "runs_a_day": 1000,
}


def lenient(**more: object) -> str:
    """The node config's entry `policy` of such a site."""
    return json.dumps(LENIENT | more)
