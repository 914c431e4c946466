"""One run on this machine: on Flower's simulation engine, or, one site at a time, without it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# Before Flower is imported: no telemetry, no look for updates, no installing of the app's dependencies.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from cli.simulation.choice import choice_line, one_process
from cli.simulation.embedding import embed_sites, needs_embeddings
from cli.simulation.one_process import OneProcessGrid
from client.app import app as client_app
from client.data import NoUsableData
from common.config import Config, SettingsError
from common.encoders import HEADS
from common.signals import set_by_handlers
from server.app import conduct
from server.history.events import Event, Listener, RunEnded
from server.history.run_directory import own_run
from server.listeners import run_listeners

_PATIENCE = 60.0  # seconds for the listeners to finish their files after Ctrl-C
_ORDERLY_END = 2.0  # seconds for the engine to stop by itself after that


class _Outcome:
    """Hears how the run ended."""

    def __init__(self) -> None:
        self.value = "failed"
        self.known = threading.Event()

    def hear(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self.value = event.outcome
            self.known.set()


def simulate(config: Config, *, jobs: int = 0) -> str:
    """Run a config from `cli.simulation.preflight` with simulated sites; return "finished", "interrupted" or "failed".

    `jobs` sites work at the same time in Flower's simulation engine (0: one per core, and for heads a single one); a
    single one needs no engine.
    """
    with own_run(config) as directory:
        return _simulate(config, directory, jobs)


def _simulate(config: Config, directory: Path, jobs: int) -> str:
    outcome = _Outcome()
    listeners: list[Listener] = [*run_listeners(directory, config.track), outcome]
    stop = threading.Event()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct(grid, config, listeners, stop, directory)

    with _interruptible(stop, outcome.known):
        try:
            alone = jobs == 1 or (jobs == 0 and one_process(config))
            print(choice_line(config, jobs, alone=alone), file=sys.stderr, flush=True)
            if alone:
                _quieten_flower()
                if needs_embeddings(config):
                    _embed(config)
                conduct(OneProcessGrid(client_app, config.sites, stop), config, listeners, stop, directory)
                return outcome.value
            run_engine(server_app, client_app, config.sites, jobs)
        except Exception:
            # After an interruption the engine complains about the work that was cut off.
            if not stop.is_set():
                raise
    return outcome.value


def run_engine(server_app: ServerApp, app: ClientApp, sites: int, jobs: int = 0) -> None:
    """Run a Flower app with `sites` simulated sites, `jobs` of them at the same time (0: one per core)."""
    _quieten_flower()
    jobs = jobs or min(os.cpu_count() or 1, sites)
    gpus = torch.cuda.device_count()
    backend = {
        "init_args": {"num_cpus": jobs, "logging_level": logging.ERROR, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": gpus / jobs if gpus else 0.0},
    }
    run_simulation(server_app, app, sites, backend_config=backend)  # type: ignore[arg-type]


def _embed(config: Config) -> None:
    """Embed what all sites hold in one go; what is wrong with a site's data or the encoder is said when it is asked."""
    try:
        embed_sites(config, tests=config.train.model in HEADS)
    except (SettingsError, NoUsableData, OSError) as error:
        logging.getLogger("coterie").warning("images are embedded site by site: %s", error)


def _quieten_flower() -> None:
    # Flower's log would tear the display apart; what matters in it comes through our own events.
    logging.getLogger("flwr").setLevel(logging.ERROR)


@contextmanager
def _interruptible(stop: threading.Event, ended: threading.Event) -> Iterator[None]:
    """Let Ctrl-C end the run in good order; a second Ctrl-C ends the process at once."""

    def leave() -> None:
        # Once the run directory is complete, sites in the middle of an epoch are not waited for: the engine would.
        ended.wait(_PATIENCE)
        time.sleep(_ORDERLY_END)
        _kill_descendants()
        os._exit(130)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            _kill_descendants()
            os._exit(130)
        tell()
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        threading.Thread(target=leave, daemon=True).start()

    with set_by_handlers(stop) as tell:
        previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _kill_descendants() -> None:
    """End the engine's processes, which would outlive this one."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may hold anything; the parent is the second field after it.
            parent[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while grown := {child for child, of in parent.items() if of in family} - family:
        family |= grown
    for pid in family - {os.getpid()}:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
