"""Where a run goes on: a checkpoint after each round, and the way back from the last one."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from common.config import Config, SettingsError
from server.history import run_directory
from server.history.checkpoint import Checkpoints, State
from server.history.events import Audience, CheckpointFailed, RunResumed, RunStarted
from server.strategy import ClusteredStrategy, Setting

_log = logging.getLogger("coterie")


class Continuation:
    """The checkpoints of a run in its directory; without a directory there are none.

    Parameters
    ----------
    directory, config
        Of the run.
    audience
        Hears that the run starts or goes on, and when a checkpoint could not be written.

    Attributes
    ----------
    stamp
        What tells this run from every other one; after `begin`, that of the run that goes on.
    """

    def __init__(self, directory: Path | None, config: Config, audience: Audience) -> None:
        self._directory = directory
        self._config = config
        self._audience = audience
        self.stamp = secrets.token_hex(8)
        self._checkpoints = None if directory is None else Checkpoints(directory / run_directory.CHECKPOINTS)

    def begin(self, strategy: ClusteredStrategy) -> int:
        """Restore the last checkpoint, if the run is to go on from one; return how many rounds are done.

        The strategy is told where the run takes place.
        """
        done = self._restore(strategy)
        strategy.setting = Setting(
            self.stamp,
            "" if self._directory is None else str(self._directory / run_directory.MEMORY),
            self._keep,
            tuple if self._checkpoints is None else self._checkpoints.rounds,
        )
        return done

    def _restore(self, strategy: ClusteredStrategy) -> int:
        saved = self._checkpoints.latest() if self._checkpoints and self._config.resume == "auto" else None
        if saved is None:
            self._audience.tell(RunStarted(self._config, self.stamp))
            return 0
        done, state = saved
        try:
            strategy.restore(done, state["strategy"])
            self.stamp = str(state["stamp"])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"the checkpoint of round {done} does not fit this version of Coterie ({error}): resume with the "
                "version that wrote it, or start again in another directory"
            ) from None
        self._audience.tell(
            RunResumed(
                config=self._config,
                stamp=self.stamp,
                round_number=done,
                cards=tuple(member.card for member in strategy.members),
                labels={member.name: member.group for member in strategy.members},
                models=strategy.models,
            )
        )
        return done

    def _keep(self, round_number: int, state: Callable[[], State]) -> None:
        """Write a checkpoint, if it is time for one. The listeners have heard of the round by now."""
        every = self._config.checkpoint
        if self._checkpoints is None or not every:
            return
        if round_number % every and round_number != self._config.rounds:
            return
        try:
            # No checkpoint is ahead of the log: what happened before it can be told from nothing else.
            self._audience.sync()
            self._checkpoints.save(round_number, {"strategy": state(), "stamp": self.stamp})
        except OSError as error:
            reason = error.strerror or str(error)
            _log.warning("no checkpoint of round %d: %s", round_number, reason)
            self._audience.tell(CheckpointFailed(round_number, reason))
