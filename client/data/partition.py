"""One data set dealt out to simulated sites, so that they differ in a controlled way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from client.data.label_draws import class_holders, dirichlet_cuts, label_groups
from client.data.whole_groups import deal_whole_groups
from common.config import PartitionSettings, SettingsError
from common.randomness import generator

Index = NDArray[np.int64]


def partition(
    labels: NDArray[np.int64],
    groups: NDArray[np.str_] | None,
    sites: int,
    settings: PartitionSettings,
    seed: int,
) -> list[Index]:
    """Return for each site the sorted positions of its samples.

    Shares are disjoint. Together they hold every sample, except that under the scheme `classes` a class that no site
    drew is left out (only when sites times classes_per_site is less than the number of classes).

    Parameters
    ----------
    labels : int64[n]
    groups : str[n] or None
        What stays together, such as the patient: whatever the scheme, a group is at one site. The scheme `group`
        needs them.
    sites
        Number of shares.
    settings
        Scheme and its parameters; every share has at least `min_size` samples.
    seed
        Of the run; the same seed gives the same shares.

    Raises
    ------
    SettingsError
        If the data cannot be dealt out that way; the message holds the numbers.
    """
    if len(labels) < sites * settings.min_size:
        raise SettingsError(
            f"{len(labels)} samples are too few for {sites} sites with partition.min_size = {settings.min_size} "
            f"({sites * settings.min_size} needed): use fewer sites or a smaller min_size"
        )
    rng = generator(seed, "partition")
    if groups is not None:
        owner = deal_whole_groups(labels, groups, sites, settings, rng)
    else:
        owner = _owners(labels, sites, settings, rng)
    shares = [np.flatnonzero(owner == site) for site in range(sites)]
    smallest = min(range(sites), key=lambda site: len(shares[site]))
    if len(shares[smallest]) < settings.min_size:
        raise SettingsError(
            f"partition.scheme = {settings.scheme!r} leaves site {smallest} with {len(shares[smallest])} samples, "
            f"fewer than partition.min_size = {settings.min_size}: use fewer sites or a smaller min_size"
            + (" (groups are not divided)" if groups is not None else "")
        )
    return shares


def _owners(labels: NDArray[np.int64], sites: int, settings: PartitionSettings, rng: np.random.Generator) -> Index:
    """Return int64[n]: the site that gets each sample, or -1."""
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    match settings.scheme:
        case "dirichlet":
            counts = _dirichlet_counts([len(rows) for rows in by_class], sites, settings, rng)
            return _deal_counts(len(labels), by_class, counts)
        case "classes":
            return _deal_classes(len(labels), by_class, sites, settings.classes_per_site, rng)
        case "disjoint":
            return _deal_disjoint(len(labels), by_class, sites, settings, rng)
        case "iid":
            return _deal_cyclically(len(labels), by_class, np.arange(sites))
        case "group" | "own":
            raise SettingsError("partition.scheme = 'group' needs data with groups (a `group` column or array)")


def _dirichlet_counts(sizes: Sequence[int], sites: int, settings: PartitionSettings, rng: np.random.Generator) -> Index:
    """Return int64[classes, sites]: class by class, shares over the sites drawn from Dirichlet(alpha).

    Redrawn until every site has `min_size`. If no draw gives that, the one that misses fewest samples is repaired.
    """
    best, fewest = np.zeros((len(sizes), sites), np.int64), sites * settings.min_size + 1
    ends = np.array(sizes, np.int64)[:, np.newaxis]
    for cuts in dirichlet_cuts(sizes, sites, settings.alpha, rng):
        counts = np.diff(cuts, axis=1, prepend=0, append=ends)
        missing = int(np.maximum(settings.min_size - counts.sum(axis=0), 0).sum())
        if missing < fewest:
            best, fewest = counts, missing
        if missing == 0:
            break
    return _repaired(best, settings.min_size)


def _repaired(counts: Index, min_size: int) -> Index:
    """Move samples, one by one, from large sites to those below `min_size`.

    A site gets more of what it has most, from the largest site that has it, so that the skew stays.
    """
    counts = counts.copy()
    while (totals := counts.sum(axis=0)).min() < min_size:
        needy = np.argmin(totals)
        labels, givers = np.nonzero((counts > 0) & (totals > min_size))
        # The last key counts most: what the needy site has most of, then the giver's size.
        choice = np.lexsort((counts[labels, givers], totals[givers], counts[labels, needy]))[-1]
        counts[labels[choice], givers[choice]] -= 1
        counts[labels[choice], needy] += 1
    return counts


def _deal_counts(total: int, by_class: Sequence[Index], counts: Index) -> Index:
    owner = np.full(total, -1, np.int64)
    for rows, row_counts in zip(by_class, counts, strict=True):
        owner[rows] = np.repeat(np.arange(counts.shape[1]), row_counts)
    return owner


def _deal_classes(total: int, by_class: Sequence[Index], sites: int, per_site: int, rng: np.random.Generator) -> Index:
    """Let each site draw `per_site` classes; a class's samples are divided evenly among the sites that drew it."""
    holders = class_holders(len(by_class), sites, per_site, rng)
    owner = np.full(total, -1, np.int64)
    for rows, owners in zip(by_class, holders, strict=True):
        if owners:
            owner[rows] = np.array(owners)[np.arange(len(rows)) % len(owners)]
    return owner


def _deal_disjoint(
    total: int, by_class: Sequence[Index], sites: int, settings: PartitionSettings, rng: np.random.Generator
) -> Index:
    """Divide the classes into groups, the sites too, and each group's samples evenly among its sites."""
    owner = np.full(total, -1, np.int64)
    for drawn, owners in label_groups(len(by_class), sites, settings, rng):
        owner = np.maximum(owner, _deal_cyclically(total, [by_class[label] for label in drawn], owners))
    return owner


def _deal_cyclically(total: int, by_class: Sequence[Index], sites: Index) -> Index:
    """Deal class after class like cards, without starting over: all sizes, overall and per class, differ by ≤ 1."""
    owner = np.full(total, -1, np.int64)
    rows = np.concatenate(by_class)
    owner[rows] = sites[np.arange(len(rows)) % len(sites)]
    return owner
