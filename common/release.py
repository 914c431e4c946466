"""Which Coterie this is: what server and sites compare before they work together. `pyproject.toml` says the same."""

from __future__ import annotations

APP = "coterie/coterie"  # publisher and name, as Flower calls an app
VERSION = "0.2.0"

VERSION_HEADER = "coterie-version"  # with every question of a site to the coordinator's SuperLink
