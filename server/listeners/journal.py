"""`events.jsonl`: one line per event, written as it happens."""

from __future__ import annotations

import json
import time
from pathlib import Path

from server.history import run_directory
from server.history.event_log import encode
from server.history.events import Event


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
        line = f"{self._before}{json.dumps(encode(event, time.time()), allow_nan=False)}\n"
        self._before = ""
        self._file.append(line)

    def sync(self) -> None:
        """Have all lines on disk, or raise an OSError."""
        self._file.sync()
