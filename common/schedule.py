"""The learning rate of a round."""

from __future__ import annotations

import math

from common.config import TrainSettings


def learning_rate(settings: TrainSettings, round_number: int, rounds: int) -> float:
    """Return the rate of a round in 1..rounds; the cosine falls from `lr` to just above 0, so the last round counts."""
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (round_number - 1) / rounds))
