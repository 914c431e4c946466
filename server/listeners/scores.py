"""What a round achieved, as names and numbers for trackers."""

from __future__ import annotations

import math

from server.history.events import RoundFinished


def scores(event: RoundFinished) -> dict[str, float]:
    """Name → number, overall and per group; what is not defined is left out."""
    values = {
        "overall/accuracy": event.overall.accuracy,
        "overall/macro_f1": event.overall.macro_f1,
        "overall/auc": event.overall.auc,
        "overall/loss": event.overall.loss,
        "overall/train_loss": event.train_loss,
        "sites/mean_accuracy": event.mean_site_accuracy,
        "sites/worst_tenth_accuracy": event.worst_tenth_accuracy,
    }
    values |= {f"groups/{group}/accuracy": metrics.accuracy for group, metrics in event.groups.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}
