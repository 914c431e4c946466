"""Flower's SuperNode in this process, which leaves bundles closed. Imports Flower only when it is called."""

from __future__ import annotations

import sys


def leave_bundles_closed() -> None:
    """Take no run config out of a bundle: a site's app gets its settings with every message."""
    from flwr.supernode import start_client_internal

    start_client_internal.__dict__["get_fused_config_from_fab"] = lambda fab, run: {}


def run_supernode() -> None:
    """Run Flower's `flower-supernode` with this process's arguments."""
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"
    flower_supernode()
