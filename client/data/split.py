"""Which of a site's samples train and which are held out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client.data.samples import TEST, TRAIN
from common.config import SettingsError

Index = NDArray[np.int64]


def split(
    labels: NDArray[np.int64],
    groups: NDArray[np.str_] | None,
    hints: NDArray[np.int8],
    fraction: float,
    lots: NDArray[np.float64],
) -> tuple[Index, Index]:
    """Return the sorted positions of the training and of the test samples.

    The source's own split (`hints`: -1 unspecified, 0 train, 1 test) is kept if it leaves something on both sides;
    unspecified samples then train, unless their group is in the test part. Otherwise `fraction` of every class is
    held out; a class with a single sample trains. No group is ever on both sides, so a site with one group has no
    test part. Whoever else has two samples or more has at least one on each side.

    Parameters
    ----------
    labels : int64[n]
    groups : str[n] or None
    hints : int8[n]
    fraction
        Share of test samples, in (0, 1).
    lots : float64[n]
        A number drawn for each sample; the lowest of a class are held out.
    """
    test = hints == TEST
    if test.any():
        if groups is not None:
            _refuse_straddling(groups, hints)
            test = np.isin(groups, groups[test])
        if not test.all():
            return np.flatnonzero(~test), np.flatnonzero(test)
    quotas = _quotas(labels, fraction)
    test = _by_class(labels, quotas, lots) if groups is None else _by_group(labels, groups, quotas, lots)
    return np.flatnonzero(~test), np.flatnonzero(test)


def split_for_good(
    groups: NDArray[np.str_] | None, hints: NDArray[np.int8], fraction: float, lots: NDArray[np.float64]
) -> tuple[Index, Index]:
    """Return the sorted positions of the training and of the test samples, where samples come and go.

    Each sample, or each group as a whole, is decided by what the source says of it and else by its own lot: held out
    if that is below `fraction`. No other sample has a say, so nobody changes sides; the price is that the shares of the
    classes hold only on average, and a small site may have no test part. The one exception: where all would be held
    out, the one with the highest lot trains.

    Parameters
    ----------
    groups : str[n] or None
    hints : int8[n]
        -1 unspecified, 0 train, 1 test.
    fraction
        Share of test samples, in (0, 1).
    lots : float64[n]
        In [0, 1); equal within a group.
    """
    test = lots < fraction
    if groups is None:
        test[hints == TRAIN] = False
        test[hints == TEST] = True
    else:
        _refuse_straddling(groups, hints)
        test[np.isin(groups, groups[hints == TRAIN])] = False
        test[np.isin(groups, groups[hints == TEST])] = True
    if test.all():
        test = lots < lots.max()
    return np.flatnonzero(~test), np.flatnonzero(test)


def _refuse_straddling(groups: NDArray[np.str_], hints: NDArray[np.int8]) -> None:
    both = np.intersect1d(groups[hints == TRAIN], groups[hints == TEST])
    if len(both):
        raise SettingsError(
            f"the data put group {str(both[0])!r} into the training and into the test part ({len(both)} such groups): "
            "its test samples would not be unseen; correct the split or the groups"
        )


def _quotas(labels: NDArray[np.int64], fraction: float) -> Index:
    """Return how many samples of each class (in the order of np.unique) to hold out, by largest remainder."""
    _, counts = np.unique(labels, return_counts=True)
    ideal = counts * fraction
    quotas: Index = np.floor(ideal).astype(np.int64)
    missing = round(len(labels) * fraction) - int(quotas.sum())
    for position in np.argsort(quotas - ideal, kind="stable")[: max(missing, 0)]:
        quotas[position] += quotas[position] < counts[position] - 1
    if len(labels) >= 2 and quotas.sum() == 0:
        # Even if all classes are singletons: a site without any test sample could not say how well it does.
        quotas[np.argmax(counts)] = 1
    return quotas


def _by_class(labels: NDArray[np.int64], quotas: Index, lots: NDArray[np.float64]) -> NDArray[np.bool_]:
    test = np.zeros(len(labels), np.bool_)
    for label, quota in zip(np.unique(labels), quotas, strict=True):
        members = np.flatnonzero(labels == label)
        test[members[np.argsort(lots[members], kind="stable")[:quota]]] = True
    return test


def _by_group(
    labels: NDArray[np.int64], groups: NDArray[np.str_], quotas: Index, lots: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Greedily take whole groups, large ones first, as long as each brings the class counts nearer to the quotas."""
    _, classes = np.unique(labels, return_inverse=True)
    names, members = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), len(quotas)), np.int64)
    np.add.at(counts, (members, classes), 1)
    if len(counts) < 2:
        return np.zeros(len(labels), np.bool_)
    drawn = np.full(len(counts), np.inf)
    np.minimum.at(drawn, members, lots)
    order = np.lexsort((drawn, -counts.sum(axis=1)))
    taken: list[int] = []
    held = np.zeros_like(quotas)
    for group in order:
        nearer = _gap(held + counts[group], quotas) < _gap(held, quotas)
        if nearer and len(taken) + 1 < len(counts):
            taken.append(int(group))
            held += counts[group]
    if not taken:
        taken = [min(order.tolist(), key=lambda group: _gap(counts[group], quotas))]
    return np.isin(members, taken)


def _gap(held: Index, quotas: Index) -> int:
    return int(np.square(held - quotas).sum())
