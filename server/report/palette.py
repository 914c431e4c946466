"""Colours and shapes. A figure names them by tokens ("@ink", "@g3"); the page's script puts in those of its theme.

A group is told apart by its number, its colour and its shape, so that nobody needs to see the colour. Text has a
contrast of 4.5 : 1 at least, everything else that carries meaning 3 : 1 (WCAG 2.2, level AA); a test computes them.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff", "panel": "#f5f6f8", "ink": "#1b1f24", "muted": "#57606a", "grid": "#dfe3e8",
    "line": "#767f8a", "accent": "#0b5cad", "bad": "#b3261e", "good": "#1a7f37",
    "g0": "#0067a8", "g1": "#b84a00", "g2": "#00785a", "g3": "#9b3f83", "g4": "#7a6200",
    "g5": "#3d4db7", "g6": "#a8323e", "g7": "#3f7d20", "g8": "#5b5f66", "g9": "#00757f",
}  # fmt: skip
DARK = {
    "paper": "#14171c", "panel": "#1d2229", "ink": "#e9ecf0", "muted": "#a9b2bd", "grid": "#323943",
    "line": "#8b949f", "accent": "#79b8ff", "bad": "#ff8a80", "good": "#6fcf87",
    "g0": "#5db4f0", "g1": "#ff9d5c", "g2": "#3fc79a", "g3": "#e38ccb", "g4": "#d8bd45",
    "g5": "#9aa6ff", "g6": "#ff8f99", "g7": "#93d06e", "g8": "#b6bcc5", "g9": "#4fc8d4",
}  # fmt: skip

# Small to large; the end that stands for "much" has the stronger contrast to the page.
LIGHT_SCALE = ("#eef4fb", "#bcd6ee", "#7fb0dc", "#3f84c2", "#155a9c", "#062f5f")
DARK_SCALE = ("#1f2833", "#214a70", "#2e6da3", "#4d95d0", "#86c0ee", "#d6ecff")

# Shapes that stay different when small; their number shares no factor with that of the colours, so that 70 groups
# have a pair of their own.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px 1px 1px 1px")
_COLOURS = 10


def group_colour(group: int) -> str:
    """The token of a group's colour."""
    return f"@g{group % _COLOURS}"


def group_symbol(group: int) -> str:
    """The shape of a group's marker."""
    return SYMBOLS[group % len(SYMBOLS)]


def group_dash(group: int) -> str:
    """The stroke of a group's line."""
    return DASHES[group % len(DASHES)]
