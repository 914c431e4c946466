"""Where a run goes on: a checkpoint after each round, and the way back from the last one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from common.config import Config, SettingsError
from server import run_directory
from server.checkpoint import Checkpoints, State
from server.events import Audience, CheckpointFailed, RunResumed, RunStarted
from server.strategy import ClusteredStrategy

_log = logging.getLogger("coterie")

# Bytes; the last row of a table of metrics fits in, and so does the end of the one before it.
_LONGEST_ROW = 4096


class Continuation:
    """The checkpoints of a run in its directory; without a directory there are none.

    Parameters
    ----------
    directory, config
        Of the run.
    audience
        Hears that the run starts or goes on, and when a checkpoint could not be written.
    """

    def __init__(self, directory: Path | None, config: Config, audience: Audience) -> None:
        self._directory = directory
        self._config = config
        self._audience = audience
        self._checkpoints = None if directory is None else Checkpoints(directory / run_directory.CHECKPOINTS)

    def begin(self, strategy: ClusteredStrategy) -> int:
        """Restore the last checkpoint, if the run is to go on from one; return how many rounds are done."""
        saved = self._checkpoints.latest() if self._checkpoints and self._config.resume == "auto" else None
        if saved is None:
            self._audience.tell(RunStarted(self._config))
            return 0
        done, state = saved
        try:
            strategy.restore(done, state["strategy"])
            metrics_bytes = int(state["metrics_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"the checkpoint of round {done} does not fit this version of Coterie ({error}): resume with the "
                "version that wrote it, or start again in another directory"
            ) from None
        self._require_metrics(metrics_bytes)
        self._audience.tell(
            RunResumed(
                config=self._config,
                round_number=done,
                cards=tuple(member.card for member in strategy.members),
                labels={member.name: member.group for member in strategy.members},
                models=strategy.models,
                metrics_bytes=metrics_bytes,
            )
        )
        return done

    def _require_metrics(self, size: int) -> None:
        """Raise if the metrics up to the checkpoint are not all there: they could not be written again."""
        assert self._directory is not None
        path = self._directory / run_directory.METRICS
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise SettingsError(
                f"{path} has {found} bytes where the checkpoint knows of {size}: bring the file back, or start again "
                "in another directory"
            )

    def keep(self, round_number: int, state: Callable[[], State]) -> None:
        """Write a checkpoint, if it is time for one. The listeners have heard of the round by now."""
        every = self._config.checkpoint
        if self._checkpoints is None or self._directory is None or not every:
            return
        if round_number % every and round_number != self._config.rounds:
            return
        try:
            size = _on_disk(self._directory / run_directory.METRICS, round_number)
            self._checkpoints.save(round_number, {"strategy": state(), "metrics_bytes": size})
        except OSError as error:
            reason = error.strerror or str(error)
            _log.warning("no checkpoint of round %d: %s", round_number, reason)
            self._audience.tell(CheckpointFailed(round_number, reason))


def _on_disk(path: Path, round_number: int) -> int:
    """Make sure that the metrics of a round are on disk, and return the size of their file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _LONGEST_ROW, 0))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    if not last.startswith(b"%d," % round_number):
        # A checkpoint without them would lose the round: the metrics are cut to this size when the run goes on.
        raise OSError(f"{path.name} lacks round {round_number}")
    return size
