"""`report.html`: the page that shows the run, made when it ends."""

from __future__ import annotations

from pathlib import Path

from server.history import run_directory
from server.history.events import Event, RunEnded


class Report:
    """Builds the page from what the other listeners have written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def hear(self, event: Event) -> None:
        """Write the page at the end."""
        if isinstance(event, RunEnded):
            # Imported late: a run that is starting has more urgent things to load.
            from server.report import page, read_run

            text = page([read_run(self._directory)])
            run_directory.write_text(self._directory / run_directory.REPORT, text)
