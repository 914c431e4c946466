"""`events.jsonl`: one line per event, written as it happens."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from server import run_directory
from server.events import Event

# Models and distance matrices have files of their own.
_ELSEWHERE = {"models", "distance"}


class Journal:
    """Appends every event to the log."""

    def __init__(self, directory: Path) -> None:
        path = directory / run_directory.EVENTS
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file = run_directory.Appended(path)
        # A process killed in the middle of a line must not spoil the next one.
        self._before = "\n" if torn else ""

    def hear(self, event: Event) -> None:
        """Write one line at once, so that a crash loses nothing that was told."""
        body = {
            field.name: _plain(getattr(event, field.name)) for field in fields(event) if field.name not in _ELSEWHERE
        }
        entry = {"time": round(time.time(), 3), "event": type(event).__name__, **body}
        line, self._before = f"{self._before}{json.dumps(entry, allow_nan=False)}\n", ""
        self._file.append(line)


def _plain(value: Any) -> Any:
    """Turn an event's fields into what JSON can hold."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return run_directory.finite(value) if isinstance(value, float) else value
