"""Whether models have learnt more than which class is frequent: their accuracy beside that of always naming it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from common.metrics import Metrics
from common.readable import percent

# Accuracies that differ by fewer standard errors than this cannot be told apart.
STANDARD_ERRORS = 2.0

Verdict = Literal["better", "not clearly better", "no better"]


@dataclass(frozen=True)
class BesideNaming:
    """What models get right of some test samples, and what always naming the most frequent class would."""

    accuracy: float
    naming: float
    samples: int

    @property
    def verdict(self) -> Verdict:
        """Whether the models are better, by more than the chance of a test on so few samples."""
        if self.accuracy <= self.naming:
            return "no better"
        error = math.sqrt(self.naming * (1 - self.naming) / self.samples)
        return "better" if self.accuracy > self.naming + STANDARD_ERRORS * error else "not clearly better"

    @property
    def words(self) -> str:
        """The same, for people."""
        return (
            f"{percent(self.accuracy)} right, and always naming the most frequent class would get "
            f"{percent(self.naming)} of these {self.samples} test samples: {self.verdict}"
        )


def beside_naming(tested: Iterable[Metrics]) -> BesideNaming | None:
    """Compare where each site would name its own most frequent class; None where nobody told how often that is."""
    known = [one for one in tested if one.count and math.isfinite(one.accuracy) and math.isfinite(one.naming)]
    samples = sum(one.count for one in known)
    if not samples:
        return None
    right = math.fsum(one.accuracy * one.count for one in known)
    named = math.fsum(one.naming * one.count for one in known)
    return BesideNaming(right / samples, named / samples, samples)
