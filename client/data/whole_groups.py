"""One data set dealt out to simulated sites without dividing a group (a patient).

Images of one patient are alike. With some of them at one site and the rest at another, a site would be tested on a
patient whom others of its federation trained on. So a group is dealt as a whole, whatever the scheme, and counts as
what most of its samples are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client.data.label_draws import class_holders, dirichlet_cuts, label_groups
from common.config import PartitionSettings, SettingsError

Index = NDArray[np.int64]


def deal_whole_groups(
    labels: NDArray[np.int64],
    groups: NDArray[np.str_],
    sites: int,
    settings: PartitionSettings,
    rng: np.random.Generator,
) -> Index:
    """Return int64[n]: the site that gets each sample, or -1; all samples of a group have the same.

    Sites that got too little are given more of the class they have most of, as far as whole groups allow it.
    """
    units = _Units.of(labels, groups)
    if len(units.sizes) < sites:
        raise SettingsError(
            f"{len(units.sizes)} groups are too few for {sites} sites: a group (a patient) stays at one site; use "
            "fewer sites"
        )
    owner = _first_deal(units, sites, settings, rng)
    # A site with a single group has no test part; where there are enough, everybody gets two.
    fewest = 2 if len(units.sizes) >= 2 * sites else 1
    # Elsewhere the scheme itself says which classes a site may have.
    free = settings.scheme in ("dirichlet", "iid", "group")
    return _repaired(owner, units, sites, settings.min_size, fewest, free=free)[units.members]


@dataclass(frozen=True, eq=False)
class _Units:
    """The groups, in the order of their names.

    Attributes
    ----------
    members : int64[n]
        Group of each sample.
    sizes : int64[g]
    kinds : int64[g]
        What most samples of a group are: place of the class among those that are most frequent in any group.
    """

    members: Index
    sizes: Index
    kinds: Index

    @classmethod
    def of(cls, labels: NDArray[np.int64], groups: NDArray[np.str_]) -> _Units:
        _, members = np.unique(groups, return_inverse=True)
        _, classes = np.unique(labels, return_inverse=True)
        counts = np.zeros((int(members.max()) + 1, int(classes.max()) + 1), np.int64)
        np.add.at(counts, (members, classes), 1)
        _, kinds = np.unique(counts.argmax(axis=1), return_inverse=True)
        return cls(members.astype(np.int64), counts.sum(axis=1), kinds.astype(np.int64))

    def held(self, owner: Index, sites: int) -> Index:
        """int64[kinds, sites]: samples by kind of group and site."""
        held = np.zeros((int(self.kinds.max()) + 1, sites), np.int64)
        dealt = owner >= 0
        np.add.at(held, (self.kinds[dealt], owner[dealt]), self.sizes[dealt])
        return held


def _first_deal(units: _Units, sites: int, settings: PartitionSettings, rng: np.random.Generator) -> Index:
    by_kind = [rng.permutation(np.flatnonzero(units.kinds == kind)) for kind in range(int(units.kinds.max()) + 1)]
    everybody = np.arange(sites)
    owner = np.full(len(units.sizes), -1, np.int64)
    match settings.scheme:
        case "dirichlet":
            return _dirichlet(units, by_kind, sites, settings, rng)
        case "classes":
            holders = class_holders(len(by_kind), sites, settings.classes_per_site, rng)
            for rows, drawn in zip(by_kind, holders, strict=True):
                if drawn:
                    _deal_evenly(units, [rows], np.array(drawn), owner)
        case "disjoint":
            for kinds, owners in label_groups(len(by_kind), sites, settings, rng):
                _deal_evenly(units, [by_kind[kind] for kind in kinds], owners, owner)
        case "iid":
            _deal_evenly(units, by_kind, everybody, owner)
        case "group":
            _deal_evenly(units, [rng.permutation(np.concatenate(by_kind))], everybody, owner)
    return owner


def _dirichlet(
    units: _Units, by_kind: list[Index], sites: int, settings: PartitionSettings, rng: np.random.Generator
) -> Index:
    """Lay the groups of a kind in a row and cut it by a Dirichlet draw; a group goes where its middle is.

    Of several draws the one that leaves fewest samples missing.
    """
    ends = [np.cumsum(units.sizes[rows]) for rows in by_kind]
    best, fewest = np.full(len(units.sizes), -1, np.int64), sites * settings.min_size + 1
    for cuts in dirichlet_cuts([int(end[-1]) for end in ends], sites, settings.alpha, rng):
        owner = np.empty(len(units.sizes), np.int64)
        for rows, end, at in zip(by_kind, ends, cuts, strict=True):
            owner[rows] = np.searchsorted(at, end - 1 - units.sizes[rows] // 2, side="right")
        missing = int(np.maximum(settings.min_size - units.held(owner, sites).sum(axis=0), 0).sum())
        if missing < fewest:
            best, fewest = owner, missing
        if missing == 0:
            break
    return best


def _deal_evenly(units: _Units, lots: list[Index], sites: Index, owner: Index) -> None:
    """Lot by lot, deal the largest groups first, each to who has least of the lot, and among equals least of all."""
    held = np.zeros(len(sites), np.int64)
    for rows in lots:
        of_lot = np.zeros(len(sites), np.int64)
        for unit in rows[np.argsort(-units.sizes[rows], kind="stable")]:
            least = np.flatnonzero(of_lot == of_lot.min())
            place = least[np.argmin(held[least])]
            owner[unit] = sites[place]
            of_lot[place] += units.sizes[unit]
            held[place] += units.sizes[unit]


def _repaired(owner: Index, units: _Units, sites: int, min_size: int, fewest: int, *, free: bool) -> Index:
    """Move groups, one by one, from those who can spare them to sites with too few samples or groups.

    A site gets more of what it has most of, from the largest site that has it, so that the skew stays; unless `free`,
    nothing that it has none of. Ends when all are served or nobody can give: every move lessens what is missing.
    """
    owner = owner.copy()
    while True:
        held = units.held(owner, sites)
        totals, counts = held.sum(axis=0), np.bincount(owner[owner >= 0], minlength=sites)
        needy = np.flatnonzero((totals < min_size) | (counts < fewest))
        giver_left = totals[owner] - units.sizes
        spare = (owner >= 0) & (giver_left >= min_size) & (counts[owner] > fewest)
        for site in needy[np.argsort(totals[needy], kind="stable")]:
            offers = spare if free or not totals[site] else spare & (held[units.kinds, site] > 0)
            offers = np.flatnonzero(offers & (owner != site))
            if len(offers):
                break
        else:
            return owner
        # The last key counts most.
        keys = (-units.sizes[offers], totals[owner[offers]], held[units.kinds[offers], site])
        owner[offers[np.lexsort(keys)[-1]]] = site
