"""One part of the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.report.figure import Figure
from server.report.markup import figure

# Longer tables are for the CSV files.
MOST_ROWS = 500


@dataclass
class Section:
    """One part of the page: its id, its heading, its HTML and the figures in it."""

    name: str
    title: str
    body: str = ""
    figures: list[Figure] = field(default_factory=list)

    def show(self, *figures: Figure) -> None:
        """Add figures after what is there."""
        for one in figures:
            self.figures.append(one)
            self.body += figure(one)
