"""Who is to get which class: the draws behind the schemes, for single samples and for whole groups alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import SettingsError

Index = NDArray[np.int64]

# With few classes and strong skew no draw ever serves every site, so there is little point in many.
_TRIES = 200


def dirichlet_cuts(sizes: Sequence[int], sites: int, alpha: float, rng: np.random.Generator) -> Iterator[Index]:
    """Yield draws int64[classes, sites − 1]: where a class of `sizes[c]` samples in a row is cut into the sites' parts.

    Class by class, the parts are drawn from Dirichlet(alpha).
    """
    ends = np.array(sizes, np.int64)[:, np.newaxis]
    for _ in range(_TRIES):
        shares = rng.dirichlet(np.full(sites, alpha), size=len(sizes))
        yield (np.cumsum(shares, axis=1)[:, :-1] * ends).astype(np.int64)


def class_holders(classes: int, sites: int, per_site: int, rng: np.random.Generator) -> list[list[int]]:
    """Let each site draw `per_site` classes; return the sites of each class."""
    if per_site > classes:
        raise SettingsError(f"partition.classes_per_site = {per_site} is more than the {classes} classes in the data")
    holders: list[list[int]] = [[] for _ in range(classes)]
    for site in range(sites):
        # At random among the classes with fewest holders: no class is forgotten while another is held twice as often.
        order = sorted(rng.permutation(classes).tolist(), key=lambda drawn: len(holders[drawn]))
        for drawn in order[:per_site]:
            holders[drawn].append(site)
    return holders


def label_groups(classes: int, sites: int, count: int, rng: np.random.Generator) -> list[tuple[Index, Index]]:
    """Divide the classes into `count` groups, the sites too; return (classes, sites) of each group."""
    if count > min(classes, sites):
        raise SettingsError(
            f"partition.groups = {count} is more than the {classes} classes in the data or the {sites} sites"
        )
    drawn = np.array_split(rng.permutation(classes), count)
    return [(labels, np.arange(group, sites, count)) for group, labels in enumerate(drawn)]
