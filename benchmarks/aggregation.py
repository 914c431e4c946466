"""Memory and time of averaging one round's replies: `python -m benchmarks.aggregation` (Linux).

Thirty ResNet18 updates in three groups, as Flower records made one by one while the server averages, ours beside
Flower's own function, which needs all replies at once, and beside the plainest running sum.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from numpy.typing import NDArray

from common import wire
from common.extras import Network
from common.models import build, get_state
from server.aggregation import GroupAverage

REPLIES = 30
GROUPS = 3
SAMPLES = 100
LIMIT_MB = 1024
# FedAvg declares no arrays beside the model that would be held against it.
NETWORK = Network({}, 10)

State = dict[str, NDArray[Any]]


class Stopwatch:
    """Adds up the processor time of averaging, without that of making the replies."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def replies(sent: RecordDict) -> Iterator[RecordDict]:
    """One group's updates: copies of one, each with bytes of its own as if from the network; none is kept here."""
    model = cast(ArrayRecord, sent["model"])
    for _ in range(REPLIES // GROUPS):
        arrays = {
            name: Array(array.dtype, array.shape, array.stype, bytes(memoryview(array.data)))
            for name, array in model.items()
        }
        reply = RecordDict({"model": ArrayRecord(arrays), "training": sent["training"]})
        del arrays
        yield reply
        del reply


def streaming(reference: State, sent: RecordDict, watch: Stopwatch) -> list[Any]:
    """Ours: each reply enters its group's average and is let go."""
    means = []
    for _ in range(GROUPS):
        average = GroupAverage(reference, 2 * SAMPLES * REPLIES)
        for reply in replies(sent):
            with watch:
                update = wire.unpack_update(reply, declared={}, network=NETWORK, limit_mb=LIMIT_MB)
                average.add(update.state, update.samples)
            # The loop's own names would keep the reply while the next one is made.
            del reply, update
        with watch:
            means.append(average.result())
    return means


def running_sum(reference: State, sent: RecordDict, watch: Stopwatch) -> list[Any]:
    """The plainest streaming mean, in float64: it depends on the order of arrival and takes any update."""
    means = []
    for _ in range(GROUPS):
        sums = {name: np.zeros(array.shape) for name, array in reference.items()}
        total = 0
        for reply in replies(sent):
            with watch:
                update = wire.unpack_update(reply, declared={}, network=NETWORK, limit_mb=LIMIT_MB)
                total += update.samples
                for name, array in update.state.items():
                    sums[name] += np.multiply(array, update.samples, dtype=np.float64)
            del reply, update
        with watch:
            means.append({name: (sums.pop(name) / total).astype(array.dtype) for name, array in reference.items()})
    return means


def flower(reference: State, sent: RecordDict, watch: Stopwatch) -> list[Any]:
    """Flower's own average, once per group, when the last reply is there."""
    received = [list(replies(sent)) for _ in range(GROUPS)]
    with watch:
        return [aggregate_arrayrecords(members, "samples") for members in received]


VARIANTS: dict[str, Callable[[State, RecordDict, Stopwatch], list[Any]]] = {
    "GroupAverage": streaming,
    "running sum in float64": running_sum,
    "Flower's aggregate_arrayrecords": flower,
}


def memory(field: str) -> int:
    """Bytes of VmRSS (resident now) or VmHWM (the most there ever was)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(variant: str, *, traced: bool) -> dict[str, float]:
    """Run one variant in this process; memory in units of one model above what was there before."""
    reference = get_state(build("resnet18", classes=10, seed=0))
    unit = sum(array.nbytes for array in reference.values())
    sent = wire.pack_update(wire.Update(reference, SAMPLES, 0.0, 0.0))
    if VARIANTS[variant] is flower:
        # Which knows one array per tensor.
        sent["model"] = ArrayRecord({name: Array(array) for name, array in reference.items()})
    watch = Stopwatch()
    before = memory("VmRSS")
    if traced:
        tracemalloc.start()
    means = VARIANTS[variant](reference, sent, watch)
    assert len(means) == GROUPS
    if traced:
        return {"traced": tracemalloc.get_traced_memory()[1] / unit}
    return {"resident": (memory("VmHWM") - before) / unit, "milliseconds": watch.seconds / REPLIES * 1e3}


def main() -> None:
    """Measure every variant in processes of its own, with and without tracing, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, traced=arguments.traced)))
        return
    print(f"{REPLIES} ResNet18 replies, {GROUPS} groups; memory in float32 models above the start.\n")
    print("| | peak of allocations | peak of resident memory | CPU ms per reply |\n|---|---|---|---|")
    for variant in VARIANTS:
        figures: dict[str, float] = {}
        for flags in ([], ["--traced"]):
            command = [sys.executable, "-m", "benchmarks.aggregation", "--variant", variant, *flags]
            figures |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        cells = (f"{figures['traced']:.2f}", f"{figures['resident']:.2f}", f"{figures['milliseconds']:.0f}")
        print(f"| {variant} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
