"""What secure sums cost, in processor seconds and bytes of a round: `python -m benchmarks.secure_sums`.

Simulated sites in one process and one thread, each with its share of the digits; one epoch a round. The sites do all
that real ones do, signatures among it. What a real federation adds is four more messages to each site: `--federation`
measures one of processes with TLS and keys on this machine, in seconds by the clock.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.deployment import measure
from cli.simulation.one_process import OneProcessGrid
from client.app import app
from common.config import parse
from server.app import conduct
from server.history.events import Event, ReplyAccepted, RoundTrained
from server.methods import settle

LEAVES_OUT = 1  # rounds at the beginning, in which libraries are loaded and data read


class Account:
    """Notes the processor time and the bytes of every round."""

    def __init__(self) -> None:
        self.clock: list[float] = [time.process_time()]
        self._sent: list[int] = [0]
        self._received: list[int] = [0]

    def hear(self, event: Event) -> None:
        if isinstance(event, ReplyAccepted) and event.stage in ("agree", "train", "open"):
            self._sent[-1] += event.bytes_sent
            self._received[-1] += event.bytes_received
        elif isinstance(event, RoundTrained):
            self.clock.append(time.process_time())
            self._sent.append(0)
            self._received.append(0)

    @property
    def seconds(self) -> float:
        """Of a round."""
        return statistics.mean(after - before for before, after in list(pairwise(self.clock))[LEAVES_OUT:])

    def megabytes(self, sites: int) -> tuple[float, float]:
        """Of a round and site: to it, and from it."""
        first, last = LEAVES_OUT, len(self.clock) - 1
        sent, received = statistics.mean(self._sent[first:last]), statistics.mean(self._received[first:last])
        return sent / sites / 1e6, received / sites / 1e6


def measured(model: str, rule: str, sites: int, rounds: int, side: int) -> Account:
    account = Account()
    with TemporaryDirectory() as folder:
        config = parse(
            {
                "method": "fedavg", "sites": sites, "rounds": rounds, "aggregate.rule": rule, "train.model": model,
                "data.image_size": side, "data.channels": 1, "partition.scheme": "iid", "checkpoint": 0,
                "cache": folder, "test.every": rounds,
            }
        )  # fmt: skip
        (Path(folder) / "models").mkdir()
        grid = OneProcessGrid(app, sites, threading.Event())
        conduct(grid, settle(config), [account], directory=Path(folder))
    return account


def federation(sites: int, rounds: int, times: int) -> None:
    """Print a table of real federations, with both rules in turn."""
    rounds_of: dict[str, list[float]] = {"mean": [], "secure": []}
    print("| aggregate.rule | s a round | CPU s a round | MB to a site | MB from a site |\n|---|---:|---:|---:|---:|")
    for _ in range(times):
        for rule, all_rounds in rounds_of.items():
            found = measure(sites, rounds, settings=["method=fedavg", f"aggregate.rule={rule}"])
            # Models are tested once more after the last round.
            all_rounds.extend(found.rounds[:-1])
            each, cpu = statistics.median(found.rounds[:-1]), sum(found.cpu.values())
            print(f"| {rule} | {each:.1f} | {cpu:.1f} | {found.down:.3f} | {found.up:.3f} |", flush=True)
    mean, secure = (statistics.median(seconds) for seconds in rounds_of.values())
    print(f"medians {mean:.1f} and {secure:.1f} s, ratio {secure / mean:.2f}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="lenet5,resnet9")
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="the first one is not counted")
    parser.add_argument("--side", type=int, default=16, help="pixels")
    parser.add_argument("--federation", type=int, default=0, metavar="TIMES", help="run that often instead")
    options = parser.parse_args()
    if options.federation:
        return federation(options.sites, options.rounds, options.federation)
    torch.set_num_threads(1)
    print("| network | aggregate.rule | CPU s a round | MB to a site | MB from a site |\n|---|---|---:|---:|---:|")
    for model in options.models.split(","):
        for rule in ("mean", "secure"):
            account = measured(model, rule, options.sites, options.rounds, options.side)
            sent, received = account.megabytes(options.sites)
            print(f"| {model} | {rule} | {account.seconds:.2f} | {sent:.3f} | {received:.3f} |", flush=True)


if __name__ == "__main__":
    main()
