"""Runs that nobody works on any more, though they say they are running: the machine or the server stopped."""

from __future__ import annotations

import json
from pathlib import Path

from common.config import SettingsError
from common.lock import alone
from server.history.run_directory import LOCK, RUN, write_json

_REASON = "the server stopped while it ran"


def mark_cut_off(folder: Path) -> list[Path]:
    """Write into such runs in a folder that they were interrupted; return their directories."""
    return [path.parent for path in sorted(folder.glob(f"*/{RUN}")) if _mark(path)]


def _mark(path: Path) -> bool:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or kept.get("outcome") != "running":
            return False
        with alone(path.with_name(LOCK), str(path.parent)):
            write_json(path, kept | {"outcome": "interrupted", "reason": _REASON})
    except (OSError, ValueError, SettingsError, RecursionError):
        # Somebody works there, or it is not to be read: then nothing is known of it.
        return False
    return True
