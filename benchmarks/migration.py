"""What migration adds to a round: `python -m benchmarks.migration`.

First in a simulated run of the demo: the time spent on head updates and verdicts as a share of the whole round. Then
the guarded rule alone, on updates without drift, for more sites and larger heads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.rounds import ours
from benchmarks.stock_fedavg import CONFIG
from common.config import MigrationSettings, load
from server.migration import GuardedRule
from server.migration.review import Migration

# sites, and parameters of the head: LeNet-5, ResNet18 with 10 and with 100 classes
SIZES = ((20, 850), (100, 5_130), (1_000, 5_130), (1_000, 51_300))


class Meter:
    """Adds up the time spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any], *, drain: bool = False) -> Callable[..., Any]:
        """Wrap a function; `drain`: it is a generator, whose items are taken here."""

        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = list(function(*arguments)) if drain else function(*arguments)
            self.seconds += time.perf_counter() - start
            return result

        return call


def in_a_run() -> None:
    config = load(CONFIG, {"migration.rule": "guarded"})
    meter = Meter()
    with (
        mock.patch.object(Migration, "observe", meter.timed(Migration.observe)),
        mock.patch.object(Migration, "review", meter.timed(Migration.review, drain=True)),
    ):
        rounds = ours(config)
    # The first round is not among those timed, but its migration is: the share is rather too large.
    share = meter.seconds / (sum(rounds) + statistics.mean(rounds))
    each = 1000 * meter.seconds / config.rounds
    print(f"{config.sites} sites, {config.train.model}, digits: {each:.2f} ms per round, ", end="")
    print(f"{100 * share:.2f} % of a round of {statistics.median(rounds):.2f} s.\n")


def alone(sites: int, parameters: int) -> float:
    """Median seconds of the rule for one round."""
    rng = np.random.default_rng(0)
    groups = {f"{site:04d}": site % 5 for site in range(sites)}
    directions = rng.normal(size=(5, parameters))
    rule = GuardedRule(MigrationSettings())
    seconds = []
    for round_number in range(1, 6):
        noise = rng.normal(size=(sites, parameters))
        changes = {site: directions[group] + row for (site, group), row in zip(groups.items(), noise, strict=True)}
        start = time.perf_counter()
        rule.suspects(round_number, changes, groups)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    in_a_run()
    print("| sites | head parameters | ms per round |\n|---:|---:|---:|")
    for sites, parameters in SIZES:
        print(f"| {sites:,} | {parameters:,} | {1000 * alone(sites, parameters):.1f} |")


if __name__ == "__main__":
    main()
