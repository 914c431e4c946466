"""TensorBoard event files in `tensorboard/` of the run directory (extra: coterie[tensorboard])."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from server.history.events import Event, GroupsFormed, RoundFinished, RunEnded, RunResumed, RunStarted, SitesMoved
from server.listeners.scores import scores

FOLDER = "tensorboard"


class TensorBoard:
    """Writes what a round achieved, overall, per group and as a histogram over the sites."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER
        self._writer: SummaryWriter | None = None

    def hear(self, event: Event) -> None:
        """Append to the event file; it is on disk after every round."""
        match event:
            case RunStarted(config):
                self._writer = SummaryWriter(str(self._folder))
                self._text("settings", f"```\n{config.model_dump_json(indent=1)}\n```", 0)
            case RunResumed(round_number=done):
                # What an earlier process wrote of the rounds that are done again is to be ignored.
                self._writer = SummaryWriter(str(self._folder), purge_step=done + 1)
            case GroupsFormed():
                sizes = np.bincount(event.labels).tolist()
                self._text("groups", f"{len(sizes)} groups of {', '.join(map(str, sizes))} sites", 0)
            case SitesMoved():
                moved = f"{', '.join(event.sites)}: group {event.origin} → {event.target}"
                self._text("moves", moved, event.round_number)
            case RoundFinished():
                self._round(event)
            case RunEnded() if self._writer is not None:
                self._writer.close()

    def _text(self, name: str, text: str, step: int) -> None:
        assert self._writer is not None
        self._writer.add_text(name, text, step)

    def _round(self, event: RoundFinished) -> None:
        assert self._writer is not None
        for name, value in scores(event).items():
            self._writer.add_scalar(name, value, event.round_number)
        accuracies = [metrics.accuracy for metrics in event.sites.values() if math.isfinite(metrics.accuracy)]
        if accuracies:
            self._writer.add_histogram("sites/accuracy", np.array(accuracies), event.round_number)
        self._writer.flush()
