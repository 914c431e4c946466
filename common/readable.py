"""Numbers as people read them: in the terminal, in the report and in tables."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Write a length of time: 4.2 s, 3 min 20 s, 2 h 5 min."""
    # What would round to 60.0 s is a minute.
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def percent(share: float, unknown: str = "–") -> str:
    """Write a share of 1 as 12.3%; `unknown` stands for what is not defined."""
    return f"{share:.1%}" if math.isfinite(share) else unknown


def megabytes(count: float) -> str:
    """Write a number of bytes in the unit that suits it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def p_value(value: float) -> str:
    """Write a p-value with as many digits as matter."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"
