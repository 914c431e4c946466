"""Who trains in a round: a share of every group by itself, or of all sites together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from common.randomness import generator

T = TypeVar("T")


def participants(
    present: Mapping[int, Sequence[T]],
    fraction: float,
    seed: int,
    round_number: int,
    draw: Literal["group", "all"] = "group",
) -> dict[int, list[T]]:
    """Draw the sites that train this round, by group; of the sites in `present`, and in their order.

    Out of every group by itself, at least one of each: then no group ever waits. Out of all, at least one: then as
    many train with a hundred groups as with one, but a group of whom nobody was drawn is missing.
    """
    if draw == "group":
        return {
            group: _drawn(members, fraction, seed, f"group {group}", round_number) for group, members in present.items()
        }
    everybody = [(group, member) for group, members in present.items() for member in members]
    chosen: dict[int, list[T]] = {}
    for group, member in _drawn(everybody, fraction, seed, "all", round_number):
        chosen.setdefault(group, []).append(member)
    return chosen


def _drawn(sites: Sequence[T], fraction: float, seed: int, whose: str, round_number: int) -> list[T]:
    count = max(1, round(fraction * len(sites)))
    if count >= len(sites):
        return list(sites)
    lots = generator(seed, "participation", whose, round_number)
    return [sites[index] for index in np.sort(lots.choice(len(sites), count, replace=False))]
