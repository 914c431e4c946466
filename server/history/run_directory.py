"""The product of a run, on disk. Everything else can be rebuilt from it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.config import Config, SettingsError, flatten
from common.foreign import read_json
from common.lock import alone

RUN = "run.json"
EVENTS = "events.jsonl"
CLUSTERS = "clusters.json"
DISTANCES = "distances.npy"
SIMILARITIES = "similarities.npz"
CONFUSIONS = "confusions.json"
SCORES = "scores.json"
METRICS = "metrics.csv"
SUMMARY = "summary.json"
MODELS = "models"
REPORT = "report.html"
CHECKPOINTS = "checkpoint"
MEMORY = "memory"
LOCK = ".lock"

# What has no bearing on the figures of a run and may be different when it goes on.
_MAY_CHANGE = {
    "out", "resume", "queue", "checkpoint", "cache", "track",
    "round.deadline", "round.start_timeout", "round.in_flight", "round.max_message_mb",
}  # fmt: skip


def default_directory(config: Config) -> Path:
    """Where a run goes when nobody says."""
    return Path("runs") / run_name(config)


def run_name(config: Config) -> str:
    """Name a run that starts now after time, method and seed."""
    return stamped(f"{config.method}-seed{config.seed}")


def stamped(name: str) -> str:
    """Put the time before a name, so that a listing is in the order of time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"


@contextmanager
def own_run(config: Config) -> Iterator[Path]:
    """Open the run directory as `open_run` does, and keep every other process from working there meanwhile."""
    path = _made(config)
    with alone(path / LOCK, f"out = {path}"):
        # Only now: another process may have begun or finished the run a moment ago.
        yield open_run(config.model_copy(update={"out": str(path)}))


def open_run(config: Config) -> Path:
    """Make the run directory, or open the one that holds the run to be resumed."""
    path = _made(config)
    if (path / RUN).exists():
        check_resumable(path, config)
    return path


def _made(config: Config) -> Path:
    if config.resume == "auto" and not config.out:
        raise SettingsError("resume = 'auto' needs to know which run: set out to its directory")
    path = Path(config.out) if config.out else default_directory(config)
    path = path.expanduser().absolute()
    try:
        # For its owner alone: what sites said of themselves is in it.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # a folder of somebody else's, who lets this user write there
            path.chmod(0o700)
        (path / MODELS).mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(f"out = {path} cannot be created: {error.strerror}") from None
    return path


def as_begun(config: Config) -> Config:
    """The settings of a run whose sites are there by themselves: one that goes on waits for as many as it began with.

    Who came since then joins it.
    """
    if config.resume != "auto" or not config.out:
        return config
    try:
        kept = json.loads((Path(config.out).expanduser() / RUN).read_text(encoding="utf-8"))["config"]["sites"]
    except (OSError, ValueError, KeyError, TypeError):
        return config
    return config.model_copy(update={"sites": kept}) if isinstance(kept, int) and kept > 0 else config


def check_resumable(path: Path, config: Config) -> None:
    """Raise unless the run in a directory may go on with these settings."""
    if config.resume == "never":
        raise SettingsError(
            f"out = {path} already holds a run: choose another directory, remove that one, or set resume = 'auto' "
            "to go on with it"
        )
    try:
        kept = read_json(path / RUN)
        before, outcome = flatten(kept["config"]), kept["outcome"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path / RUN} cannot be read: {error}; choose another directory") from None
    if outcome == "finished":
        raise SettingsError(f"out = {path} holds a run that is finished: there is nothing to resume")
    if shown := _changes(before, config):
        raise SettingsError(f"out = {path} holds a run with other settings: {shown}; resume it with the same ones")


def _changes(before: dict[str, Any], config: Config) -> str:
    """Say which settings that matter are others than before; nothing if none is."""
    now = flatten(json.loads(config.model_dump_json()))
    changed = [key for key in now if now[key] != before.get(key) and key not in _MAY_CHANGE]
    return ", ".join(f"{key} = {now[key]!r} (was {before.get(key)!r})" for key in changed[:5])


def is_finished(path: Path, config: Config) -> bool:
    """Whether a directory holds the finished run of these settings; one of others is a `SettingsError`."""
    try:
        kept = read_json(path / RUN)
        before, outcome = flatten(kept["config"]), kept["outcome"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if outcome == "finished" and (shown := _changes(before, config)):
        raise SettingsError(f"{path} holds a run with other settings: {shown}; remove it or choose another directory")
    return bool(outcome == "finished")


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Appended:
    """A file that grows by whole blocks. What a full disk refuses is kept, and comes before the next block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""

    def append(self, block: str) -> None:
        """Write a block and all that is waiting; an OSError leaves the file as it was."""
        self._waiting += block.encode()
        # Unbuffered, and asked no more than it must be: the log grows by a line for every answer.
        with open(self._path, "ab", buffering=0) as file:
            size = file.tell()
            try:
                written = 0
                while written < len(self._waiting):
                    written += file.write(memoryview(self._waiting)[written:])
            except OSError:
                # Half a block would spoil the file for its readers.
                with suppress(OSError):
                    os.truncate(self._path, size)
                raise
        self._waiting = b""

    def replace(self, text: str) -> None:
        """Write the whole file anew, as `write_text` does; what was waiting is forgotten."""
        self._waiting = b""
        write_text(self._path, text)

    def sync(self) -> None:
        """Have every block on disk, or raise an OSError."""
        if self._waiting:
            self.append("")
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


def finite(value: float) -> float | None:
    """JSON has no NaN; what is not defined is null."""
    return value if math.isfinite(value) else None
