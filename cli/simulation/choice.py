"""Whether a simulation is done sooner one site at a time, in this process, or on Flower's engine."""

from __future__ import annotations

import os
import time

from client.data import NoUsableData, load_site
from client.identity import Identity
from client.networks import network_of
from client.training import default_device, train
from common.config import Config, SettingsError
from common.encoders import HEADS
from common.models import get_state, set_state
from common.networks import build_for
from common.own_network import NetworkError
from server.methods import recipe

# Seconds until the engine has started, with a process for every core that imports everything (2 cores, 2026-11-18).
ENGINE_START = 25.0
_TIMED_BATCHES = 3


def one_process(config: Config) -> bool:
    """Whether a run is done sooner without an engine, from the time of a few batches of one site."""
    cores = min(os.cpu_count() or 1, config.sites)
    # A head is trained sooner than the engine has started; with a single round the work is the server's.
    if config.train.model in HEADS or cores == 1 or recipe(config).one_round:
        return True
    try:
        alone = _work(config)
    except (SettingsError, NoUsableData, NetworkError, OSError):
        # Whatever is wrong is said when the sites are asked.
        return False
    return sooner_alone(alone, cores)


def choice_line(config: Config, jobs: int, *, alone: bool) -> str:
    """Say how a run is carried out, and why."""
    if not alone:
        return f"on Flower's engine, {jobs or min(os.cpu_count() or 1, config.sites)} sites at a time"
    why = "as --jobs 1 says" if jobs == 1 else "done sooner than on Flower's engine (--jobs 2 takes it)"
    return f"one site at a time in this process: {why}"


def sooner_alone(seconds: float, cores: int) -> bool:
    """Whether so much work for one process is done before the engine has started and divided it among the cores."""
    return seconds <= ENGINE_START + seconds / cores


def _work(config: Config) -> float:
    """Seconds that all training of a run takes, one site after the other."""
    identity = Identity("000", None, (0, config.sites), None, in_engine=True)
    run = config.for_site()
    site = load_site(identity, run, rounds=config.rounds)
    model = network_of(run, identity)
    set_state(model, get_state(build_for(run, run.seed)))
    inputs, labels, batch = site.train_inputs(), site.train_labels, run.train.batch_size
    settings = run.train.model_copy(update={"epochs": 1})
    taken, timed = 0.0, 0
    # The first batch warms up.
    for count in (batch, batch * _TIMED_BATCHES):
        start = time.perf_counter()
        train(
            model, inputs[:count], labels[:count], settings,
            round_number=1, rounds=1, seed=run.seed, device=default_device(),
        )  # fmt: skip
        taken, timed = time.perf_counter() - start, len(labels[:count])
    samples = len(site.samples) * (1 - run.data.test_fraction) * config.train.fraction
    return taken / max(timed, 1) * samples * config.rounds * config.train.epochs
