"""The ServerApp: config → method → strategy → listeners → start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from common.config import Config, parse
from common.models import draw_head, get_state
from common.networks import build_for
from common.randomness import derive_seed
from common.state import State
from server.asking.grid import STOPPED, RunInterrupted, StreamingGrid
from server.collaboration.one_round import OneRoundStrategy
from server.flower.turns import told_to_end, turn, turns_folder
from server.history import run_directory
from server.history.continuation import Continuation
from server.history.events import Audience, Listener, RunEnded
from server.listeners import require_trackers, run_listeners
from server.methods import recipe, settle
from server.strategy import ClusteredStrategy

app = ServerApp()

_WAITS = "this run waits for its turn: %d before it on this server"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`: the settings are Flower's run config."""
    # Only our own lines: Flower sends this process's log over HTTP, and a line per request would feed on itself.
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logger = logging.getLogger("coterie")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    config = run_directory.as_begun(settle(parse(context.run_config)))
    require_trackers(config.track)
    stop = threading.Event()
    with (
        turn(turns_folder(), waits=config.queue, tell=lambda before: logger.info(_WAITS, before)),
        run_directory.own_run(config) as directory,
        told_to_end(stop),
    ):
        conduct(grid, config, run_listeners(directory, config.track), stop, directory)


def conduct(
    grid: Grid,
    config: Config,
    listeners: Sequence[Listener],
    stop: threading.Event | None = None,
    directory: Path | None = None,
) -> None:
    """Carry out one run on any Flower Grid, or the rest of one that ended too early.

    `stop` asks it to end early with a valid run directory; checkpoints go into `directory`, if there is one.
    """
    config = settle(config)
    method = recipe(config)
    audience = Audience(listeners)
    streaming = StreamingGrid(
        grid, deadline=config.round.deadline, in_flight=config.round.in_flight, stop=stop or threading.Event()
    )
    continuation = Continuation(directory, config, audience)
    # What is learnt in one round is not worth a checkpoint, and would keep the sites' rows on this disk.
    kind = OneRoundStrategy if method.one_round else ClusteredStrategy
    strategy = kind(config, method, initial_state(config), audience, draw=lambda number: initial_state(config, number))
    # Outside of what follows: a run that cannot go on leaves its directory as it was.
    done = continuation.begin(strategy)
    try:
        if done:
            strategy.rejoin(streaming)
        else:
            strategy.group_sites(streaming)
        if config.rounds > done:
            # Flower's loop hands one model round and round; ours are the groups' and stay with the strategy.
            strategy.start(
                grid=streaming,
                initial_arrays=ArrayRecord(),
                num_rounds=config.rounds - done,
                timeout=config.round.deadline,
            )
        elif config.rounds:
            strategy.test_last(streaming)
        if config.personalise != "none":
            strategy.personalise(streaming)
        if config.rounds:
            strategy.hand_out(streaming)
    except SystemExit:
        # How Flower ends a ServerApp that is told to end, as one is whose server is stopped.
        audience.tell(RunEnded("interrupted", "the server was stopped; resumed, the run goes on after its last round"))
        raise
    except RunInterrupted as interruption:
        audience.tell(RunEnded("interrupted", str(interruption)))
    except Exception as error:
        if stop is not None and stop.is_set():
            # Flower takes no more messages of a run that was stopped.
            audience.tell(RunEnded("interrupted", STOPPED))
            return
        audience.tell(RunEnded("failed", f"{type(error).__name__}: {error}"))
        raise
    else:
        audience.tell(RunEnded("finished", ""))


def initial_state(config: Config, number: int = 0) -> State:
    """The weights every group starts from, a function of the seed alone; further numbers give further draws."""
    seed = derive_seed(config.seed, "another start", round_number=number) if number else config.seed
    model = build_for(config, seed)
    if number:
        draw_head(model, seed)
    return get_state(model)
