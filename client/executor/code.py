"""Whose code answers a run: the site's own, unless its start file names the bundle that the run came with."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping

from flwr.app import Context, Message

from client.flower.bundle import App, Shipped
from client.foreign_code import allows
from common import wire
from common.release import APP, VERSION

_PROJECT = ("client", "common", "server", "cli")

_log = logging.getLogger("coterie.executor")


def choose(shipped: Shipped, node_config: Mapping[str, object]) -> App | None:
    """Return the app that answers; None: the bundle's, which the site has allowed by its SHA-256."""
    if allows(str(node_config.get("foreign-code", "")), shipped.digest):
        _log.warning("foreign code answers this run: the bundle %s (foreign_code in site.toml)", shipped.digest)
        _forget_project()
        return None
    if (shipped.app, shipped.version) != (APP, VERSION):
        said = wire.plain_text(f"{shipped.app} {shipped.version}")
        _log.error("a run of %s is refused; this site runs its own %s %s", said, APP, VERSION)
        _log.error("to let the run bring its code: foreign_code = [%r] in site.toml", shipped.digest)
        return _refusing(f"this site runs its own code, {APP} {VERSION}, and the run is of {said}")
    from client.app import app

    return app


def _refusing(reason: str) -> App:
    def refuse(message: Message, context: Context) -> Message:
        return Message(wire.pack_refusal(reason), reply_to=message)

    return refuse


def _forget_project() -> None:
    """Make room for the bundle's own `client` and `common`: a module that is imported already wins over any path."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _PROJECT]:
        del sys.modules[name]
    importlib.invalidate_caches()
