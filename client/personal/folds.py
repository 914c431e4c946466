"""A site's training samples in folds: each fold is judged by what the others teach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


def deal_folds(labels: Index, groups: NDArray[np.str_] | None, lots: NDArray[np.float64], count: int) -> Index:
    """Return the fold of each sample, int64[n] in 0..count - 1.

    Classes are spread over the folds as evenly as they go. A group is never in two folds.

    Parameters
    ----------
    labels : int64[n]
    groups : str[n] or None
        What must stay together, such as the patient.
    lots : float64[n]
        A number drawn for each sample; decides between equals.
    count
        Folds; some stay empty where there are fewer samples, or groups, than that.
    """
    if groups is None:
        folds = np.empty(len(labels), np.int64)
        folds[np.lexsort((lots, labels))] = np.arange(len(labels)) % count
        return folds
    names, members = np.unique(groups, return_inverse=True)
    _, classes = np.unique(labels, return_inverse=True)
    held = np.zeros((len(names), classes.max(initial=0) + 1), np.int64)
    np.add.at(held, (members, classes), 1)
    drawn = np.full(len(names), np.inf)
    np.minimum.at(drawn, members, lots)
    fold_of, filled = np.zeros(len(names), np.int64), np.zeros((count, held.shape[1]), np.int64)
    # Large groups first, each to the fold that has least of what it brings, then least of all.
    for group in np.lexsort((drawn, -held.sum(axis=1))):
        fold = np.lexsort((filled.sum(axis=1), filled @ held[group]))[0]
        fold_of[group] = fold
        filled[fold] += held[group]
    return fold_of[members]


def judgeable(labels: Index, folds: Index) -> Mask:
    """Return which samples another fold could teach, bool[n]: those whose class is there.

    The model that is kept in the end trains on all samples and will have seen every class, so what a fold would say of
    a class it alone has says nothing.
    """
    there = np.zeros((folds.max(initial=0) + 1, labels.max(initial=0) + 1), np.int64)
    np.add.at(there, (folds, labels), 1)
    elsewhere = there.sum(axis=0) - there
    known: Mask = elsewhere[folds, labels] > 0
    return known


def say_of_each(groups: NDArray[np.str_] | None, scored: Mask) -> NDArray[np.float64]:
    """Return how much each scored sample counts, float64[number scored]: all of a group count as one sample."""
    if groups is None:
        return np.ones(int(scored.sum()))
    _, members, sizes = np.unique(groups[scored], return_inverse=True, return_counts=True)
    say: NDArray[np.float64] = 1 / sizes[members]
    return say
