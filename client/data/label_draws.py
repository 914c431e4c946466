"""Who is to get which class: the draws behind the schemes, for single samples and for whole groups alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import PartitionSettings, SettingsError

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


def label_groups(
    classes: int, sites: int, settings: PartitionSettings, rng: np.random.Generator
) -> list[tuple[Index, Index]]:
    """Divide classes and sites into groups; return classes, and the sites that share their samples.

    With `overlap` a group also has the first classes of the next one (of the first after the last); these are divided
    among the sites of both.
    """
    groups = settings.groups
    if groups > min(classes, sites):
        raise SettingsError(
            f"partition.groups = {groups} is more than the {classes} classes in the data or the {sites} sites"
        )
    own = np.array_split(rng.permutation(classes), groups)
    fewest = min(len(drawn) for drawn in own)
    if settings.overlap > fewest or (settings.overlap and groups == 1):
        raise SettingsError(
            f"partition.overlap = {settings.overlap}: {groups} groups of {classes} classes have {fewest} of their own "
            "to share with a neighbour"
        )
    dealt: list[tuple[Index, Index]] = []
    for group, drawn in enumerate(own):
        here, before = np.arange(group, sites, groups), np.arange((group - 1) % groups, sites, groups)
        if settings.overlap:
            dealt.append((drawn[: settings.overlap], np.sort(np.concatenate([here, before]))))
        if len(drawn) > settings.overlap:
            dealt.append((drawn[settings.overlap :], here))
    return dealt
