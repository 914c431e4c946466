"""How sure a share of hits is, and the difference of two: intervals that hold for few samples too."""

from __future__ import annotations

import math
from typing import Literal

# Of the standard normal: 95 of 100 such intervals hold the truth.
Z = 1.959963984540054

Verdict = Literal["better together", "better alone", "cannot tell"]


def wilson(hits: float, count: float, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share: all p with (p̂ − p)² ≤ z² p (1 − p) / n; (0, 1) for no samples."""
    if count <= 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # Rounding alone could leave the share outside.
    return min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)


def newcombe(hits: float, count: float, other_hits: float, other_count: float, z: float = Z) -> tuple[float, float]:
    """Newcombe's hybrid score interval of p − p' for two independent shares (1998, method 10).

    For two models tested on the *same* samples it is on the safe side: they mostly err together, which makes the
    difference surer than this says. How often they do is not known: a site sends counts, and no single prediction.
    """
    if count <= 0 or other_count <= 0:
        return -1.0, 1.0
    share, other = hits / count, other_hits / other_count
    low, high = wilson(hits, count, z)
    other_low, other_high = wilson(other_hits, other_count, z)
    return (
        share - other - math.hypot(share - low, other_high - other),
        share - other + math.hypot(high - share, other - other_low),
    )


def judged(low: float, high: float) -> Verdict:
    """What an interval of (accuracy together − accuracy alone) says."""
    return "better together" if low > 0 else "better alone" if high < 0 else "cannot tell"
