"""One page that shows a run: built from run directories alone, after the fact or while a run grows."""

from __future__ import annotations

from server.report.page import main_part, page
from server.report.record import RunRecord, read_run

__all__ = ["RunRecord", "main_part", "page", "read_run"]
