"""Memory of a coordinator whose models are large: `python -m benchmarks.large` (Linux).

A vision transformer of 86 million weights, random at first, all of it trained by 20 sites with a few small images each.
The coordinator is this process; every site answers in a process of its own, one after the other, and its answer comes
back in the pieces in which Flower sends it. So the most that this process ever held is what a coordinator needs.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

# Before torch is loaded: a process with threads is not to be forked.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from benchmarks.aggregation import memory
from cli.simulation.engine import client_app
from cli.simulation.one_process import OneProcessGrid
from common.config import Config, parse
from server.app import conduct, initial_state
from server.history.events import Event, RoundTrained, SiteLeftOut
from server.listeners import run_listeners


class ForkedGrid(OneProcessGrid):
    """Lets every site work in a child, so that only its answer comes into this process."""

    def _answer(self, message: Message) -> Message:
        with tempfile.TemporaryFile() as file:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    write(super()._answer(message).content, file)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0, "a site died"
            return Message(read(file), reply_to=message)


def write(content: RecordDict, file: IO[bytes]) -> None:
    """Write a content in Flower's pieces, the whole of it first."""
    pieces = get_all_nested_objects(content)
    for name in [content.object_id, *(name for name in pieces if name != content.object_id)]:
        piece = pieces[name].deflate()
        file.write(name.encode() + len(piece).to_bytes(8, "little") + piece)
    file.flush()


def read(file: IO[bytes]) -> RecordDict:
    """Put the pieces together, as Flower does with those of a message that it pulls."""
    pieces: dict[str, bytes] = {}
    file.seek(0)
    while name := file.read(64):
        pieces[name.decode()] = file.read(int.from_bytes(file.read(8), "little"))
    content = inflate_object_from_contents(next(iter(pieces)), pieces)
    assert isinstance(content, RecordDict)
    return content


class Watch:
    """Notes how long rounds take, and who was left out."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]
        self.lost: list[str] = []

    def hear(self, event: Event) -> None:
        """Note it."""
        if isinstance(event, RoundTrained):
            self.times.append(time.monotonic())
        elif isinstance(event, SiteLeftOut):
            self.lost.append(f"{event.site}: {event.reason}")


def settings(sites: int, rounds: int, groups: int) -> Config:
    """A run; with several groups sites are told apart by a small encoder."""
    grouped = {
        "method": "fmcl-fixed-k", "cluster.k": groups,
        "encoder.name": "random:resnet10t", "encoder.image_size": 32,
    }  # fmt: skip
    return parse(
        {
            **(grouped if groups > 1 else {"method": "fedavg"}),
            "sites": sites, "rounds": rounds, "test.every": rounds,
            "data.image_size": 32, "train.model": "timm:vit_base_patch16_224",
            "train.weights": "random", "train.tune": "all", "train.lr": 1e-4,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--groups", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = settings(options.sites, options.rounds, options.groups)
    model = sum(array.nbytes for array in initial_state(config).values())
    before, watch = memory("VmRSS"), Watch()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "models").mkdir()
        grid = ForkedGrid(client_app, config.sites, threading.Event())
        conduct(grid, config, [*run_listeners(out), watch], directory=out)
    assert not watch.lost, watch.lost
    peak, allowed = memory("VmHWM"), (options.groups + 2) * model + 1e9
    print("| sites | groups | a model | a round | before | peak | in models | (K + 2) models + 1 GB |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    seconds = (watch.times[-1] - watch.times[0]) / options.rounds
    figures = (f"{value / 1e9:.2f} GB" for value in (model, before, peak))
    first, then, most = figures
    print(
        f"| {options.sites} | {options.groups} | {first} | {seconds:.0f} s | {then} | {most} | "
        f"{(peak - before) / model:.1f} | {allowed / 1e9:.2f} GB |"
    )


if __name__ == "__main__":
    main()
