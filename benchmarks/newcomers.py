"""Is a newcomer's confidence what it says? `python -m benchmarks.newcomers`.

The signatures are those of `benchmarks.grouping_truth`. The last site of each federation comes late; the others are in
their true groups. The first table holds what it is told against how often its group is the right one; the second says
how often a site that belongs is told that it fits nowhere (5 % by design), and how often one with a device of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from benchmarks.grouping_truth import DEVICES, DIMENSION, SPECTRA, World, draw, hash_of, introduced
from common.config import Config, parse
from server.methods.fmcl import METHOD

WORLDS = (
    *(World(f"devices, {name}", device=strength) for name, strength in DEVICES.items()),
    World("devices, strong, Dirichlet 0.5", alpha=0.5, device=DEVICES["strong"]),
    World("concept", concept=True),
    World("disjoint", disjoint=True),
)
EDGES = (0.0, 0.5, 0.7, 0.9, 0.99, 1.0)
# Beside the noise of a sample, per direction, as the devices are.
STRANGE = 1.0


@dataclass(frozen=True)
class Told:
    """What one newcomer was told, and the truth."""

    confidence: float
    right: bool
    fits: bool


def told(world: World, members: int, classes: int, number: int, config: Config, *, strange: bool) -> Told:
    """One federation and its newcomer; `strange`: it has a device that nobody else has."""
    rng = np.random.default_rng((hash_of(world.name), number, members, classes, strange))
    spectrum = list(SPECTRA.values())[number // 2 % 2]
    drawn = draw(world, members + 1, classes, equal=number % 2 == 0, spectrum=spectrum, rng=rng)
    if strange:
        shift = STRANGE * np.sqrt(spectrum.mean()) * rng.normal(size=DIMENSION)
        last = drawn[0][-1]
        drawn[0][-1] = replace(last, prototypes=(last.prototypes + shift).astype(np.float32))
    sites, groups = introduced(drawn)
    assert METHOD.place is not None
    place = METHOD.place(sites[:-1], groups[:-1], sites[-1], config)
    return Told(place.confidence, place.group == groups[-1], place.fits)


def calibration(answers: Sequence[Told]) -> None:
    """Print what was told against what was so."""
    print("| told | newcomers | mean of what was told | in the right group |")
    print("|---|---:|---:|---:|")
    for low, high in pairwise(EDGES):
        last = high == EDGES[-1]
        here = [one for one in answers if low <= one.confidence < high or (last and one.confidence == high)]
        if here:
            said, was = np.mean([one.confidence for one in here]), np.mean([one.right for one in here])
            print(f"| {low:.0%} to {high:.0%} | {len(here)} | {said:.1%} | {was:.1%} |")
    said, was = np.mean([one.confidence for one in answers]), np.mean([one.right for one in answers])
    print(f"| all | {len(answers)} | {said:.1%} | {was:.1%} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--classes", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--draws", type=int, default=40, help="of each world, number of members and of classes")
    options = parser.parse_args()
    start = time.perf_counter()
    rows, answers = [], []
    for world in WORLDS:
        for members in options.members:
            config = parse({"sites": members})
            cases = [(classes, number) for classes in options.classes for number in range(options.draws)]
            own = [told(world, members, *case, config, strange=False) for case in cases]
            strangers = [told(world, members, *case, config, strange=True) for case in cases]
            answers += own
            right = np.mean([one.right for one in own])
            missed, seen = (np.mean([not one.fits for one in told_]) for told_ in (own, strangers))
            rows.append(f"| {world.name} | {members} | {right:.1%} | {missed:.1%} | {seen:.1%} |")
    calibration(answers)
    print("\n| world | members | in the right group | belongs, told it fits nowhere | stranger, told so |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(rows))
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
