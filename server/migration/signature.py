"""The verdict by a fresh signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from server.migration.verdict import Suspect, Verdict

# What fits nowhere is so many times as far from a group as its widest member, which is more than chance, and at least
# so much of the way to the next group, which is more than a trifle.
_FAR, _HALFWAY = 2.5, 0.5
# Who moves looks like one of those it comes to: at most so many times as far from them as the widest of them, and with
# at most so large a share of classes that none of them has as much of. Else it is between two groups, and stays.
_CLOSE, _FOREIGN = 1.5, 0.25


def by_signature(
    suspect: Suspect,
    fresh: int,
    distance: NDArray[np.float64],
    rows: NDArray[np.intp],
    labels: NDArray[np.int64],
    own: int,
    witnesses: NDArray[np.bool_],
    shares: NDArray[np.float64],
) -> Verdict:
    """Judge by a fresh signature: the nearest group, if it fits, else a new one; a site that is alone already stays.

    A site moves to a group only if it looks like its members; one that is still between two groups stays where it is.
    What it sent before does not speak for its group: who is alone is compared with all others.

    A signature fits nowhere if it is as foreign to the nearest group as the groups are to each other (its mean distance
    to the group's members is no smaller than the smallest mean distance from them to another group), or half as foreign
    and far beyond what chance does among them (their own mean distances to each other).

    Parameters
    ----------
    suspect
        Who is examined.
    fresh
        Row of its fresh signature in `distance`.
    distance : float64[M, M]
        Among all signatures, old and fresh.
    rows : int[N]
        Row of each member's signature; of a suspect that is still to be examined, the one it sent before.
    labels : int64[N]
        The members' groups.
    own
        Which of the members it is.
    witnesses : bool[N]
        Who is above suspicion. A group without any is described by what its members sent before.
    shares : float64[M, C]
        Class shares, in the order of `distance`.
    """
    others = np.arange(len(labels)) != own
    speakers: dict[int, NDArray[np.intp]] = {}
    for group in np.unique(labels[others]).tolist():
        members = others & (labels == group)
        speakers[group] = rows[members & witnesses if (members & witnesses).any() else members]
    distances = {group: float(distance[fresh, rows].mean()) for group, rows in speakers.items()}
    evidence = replace(suspect.evidence, distances=distances)
    alone = suspect.group not in speakers
    if not distances:
        return Verdict(suspect.site, suspect.group, suspect.group, evidence)
    # On a tie the site stays where it is.
    nearest = min(distances, key=lambda group: (distances[group], group != suspect.group, group))
    fits = distances[nearest] == 0 or distances[nearest] < _reach(nearest, distance, speakers)
    alike = _alike(fresh, distance, speakers, nearest, shares)
    target = nearest if fits and (alike or nearest == suspect.group) else suspect.group if fits or alone else None
    # Who has changed, or looks like nobody, may be in the middle of a change.
    in_doubt = suspect.evidence.changed is not None or not (fits and alike)
    return Verdict(suspect.site, suspect.group, target, evidence, in_doubt)


def _alike(
    fresh: int,
    distance: NDArray[np.float64],
    speakers: Mapping[int, NDArray[np.intp]],
    group: int,
    shares: NDArray[np.float64],
) -> bool:
    """Whether a signature might be that of a member of a group."""
    rows = speakers[group]
    foreign = float(np.maximum(shares[fresh] - shares[rows].max(axis=0), 0.0).sum())
    width = _width_of(group, distance, speakers)
    return foreign <= _FOREIGN and (not width or float(distance[fresh, rows].mean()) <= _CLOSE * width)


def _reach(group: int, distance: NDArray[np.float64], speakers: Mapping[int, NDArray[np.intp]]) -> float:
    """How far from a group's members a signature may be and still fit."""
    rows = speakers[group]
    neighbours = [float(distance[np.ix_(rows, other)].mean()) for key, other in speakers.items() if key != group]
    width = _FAR * _width_of(group, distance, speakers)
    if not neighbours:
        return width
    nearest = min(neighbours)
    return min(nearest, max(width, _HALFWAY * nearest))


def _width_of(group: int, distance: NDArray[np.float64], speakers: Mapping[int, NDArray[np.intp]]) -> float:
    """The mean distance of a group's widest member to its peers; 0: nobody has peers.

    A group of one does not show how far apart members are; then the widest of all the others does.
    """
    widths = {
        key: float(distance[np.ix_(rows, rows)].sum(axis=1).max()) / (len(rows) - 1)
        for key, rows in speakers.items()
        if len(rows) > 1
    }
    return widths.get(group, max(widths.values(), default=0.0))
