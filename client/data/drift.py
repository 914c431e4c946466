"""A drift scenario played on simulated sites: who holds which samples in which round, and how they look.

A sample is a training or a test sample for good, whoever holds it: as its first owner's split has it. So nobody is ever
tested on what anybody trained on. All draws are functions of the seed and of the event's place in the scenario.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client.data.alterations import Alteration
from common.config import SettingsError
from common.drift import DriftEvent
from common.randomness import generator

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Holding:
    """What one site has in one round: sorted positions in the common data set, and how some of its images changed."""

    train: Index
    test: Index
    alterations: tuple[Alteration, ...]


@dataclass(frozen=True, eq=False)
class _Effect:
    """An event with everything drawn.

    Attributes
    ----------
    lots : float64[n]
        In [0, 1): a sample has changed when its lot is below the severity, so what has changed stays so as it grows.
    partners : int64[sites + 1]
        swap: who each site exchanges data with, itself if with nobody. The last entry stands for nobody's samples.
    affected : bool[sites]
    vanishing : bool[sites, classes]
        vanish: which classes leave which site.
    """

    event: DriftEvent
    lots: NDArray[np.float64]
    partners: Index
    affected: Mask
    vanishing: Mask


@dataclass(frozen=True, eq=False)
class DriftPlan:
    """A scenario made definite for one data set, its split into sites, a seed and a number of rounds.

    Attributes
    ----------
    rounds
        Of the run.
    labels : int64[n]
        Of the common data set.
    owners : int64[n]
        Who has each sample before any drift; the number of sites stands for nobody.
    trains : bool[n]
        Whether a sample is for training.
    """

    rounds: int
    labels: Index
    owners: Index
    trains: Mask
    _effects: tuple[_Effect, ...]

    def holding(self, site: int, round_number: int) -> Holding:
        """Return what a site has in a round. Swaps come first; all else happens to the data a site then holds."""
        held = np.flatnonzero(self._owners(round_number) == site)
        alterations: list[Alteration] = []
        for effect in self._effects:
            event = effect.event
            if event.kind == "swap" or not effect.affected[site]:
                continue
            changed = effect.lots[held] < event.severity(round_number, self.rounds)
            if event.kind == "vanish":
                going = effect.vanishing[site, self.labels[held]]
                # Whoever would end with nothing to train on is spared from the beginning.
                if (self.trains[held] & ~going).any():
                    held = held[~(going & changed)]
            elif changed.any():
                alterations.append(Alteration(event.kind, event.strength, held[changed]))
        trains = self.trains[held]
        return Holding(held[trains], held[~trains], tuple(alterations))

    def label_shares(self, round_number: int, sites: int, classes: int) -> NDArray[np.float64]:
        """Return the label shares of everybody's training samples after the swaps, float64[sites, classes]."""
        counts = np.zeros((sites, classes), np.int64)
        np.add.at(counts, (self._owners(round_number)[self.trains], self.labels[self.trains]), 1)
        shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
        return shares

    def _owners(self, round_number: int) -> Index:
        owners = self.owners
        for effect in self._effects:
            if effect.event.kind == "swap":
                moves = effect.lots < effect.event.severity(round_number, self.rounds)
                after = np.where(moves, effect.partners[owners], owners)
                # With very few samples and an unlucky draw one of a pair would have nothing to train on: both wait.
                stays = np.bincount(after[self.trains], minlength=len(effect.partners)) == 0
                stays |= stays[effect.partners]
                owners = np.where(stays[owners], owners, after)
        return owners


def plan_drift(
    events: Sequence[DriftEvent],
    *,
    seed: int,
    rounds: int,
    labels: Index,
    classes: Sequence[str],
    parts: Sequence[tuple[Index, Index]],
    groups: NDArray[np.str_] | None = None,
) -> DriftPlan:
    """Draw what a scenario leaves open.

    Parameters
    ----------
    events
        The scenario.
    seed, rounds
        Of the run.
    labels : int64[n]
        Of the common data set, as indices into `classes`.
    classes
        The agreed class list.
    parts
        For each simulated site the positions of its (training, test) samples before any drift; all disjoint.
    groups : str[n] or None
        What stays together, such as the patient: a group changes, and changes hands, as a whole.

    Raises
    ------
    SettingsError
        If the scenario names a site or a class that is not there, or a single site should swap.
    """
    owners = np.full(len(labels), len(parts), np.int64)
    trains = np.zeros(len(labels), np.bool_)
    for site, (train, test) in enumerate(parts):
        owners[train] = owners[test] = site
        trains[train] = True
    plan = DriftPlan(rounds, labels, owners, trains, ())
    # Who draws the lot for each sample: itself, or the first of its group.
    drawers = np.arange(len(labels))
    if groups is not None:
        _, first, members = np.unique(groups, return_index=True, return_inverse=True)
        drawers = first[members]
    for position, event in sorted(enumerate(events), key=lambda item: _turn(item[1], rounds)):
        effect = _effect(event, position, seed, len(parts), classes, plan, drawers)
        plan = DriftPlan(rounds, labels, owners, trains, (*plan._effects, effect))
    return plan


def _turn(event: DriftEvent, rounds: int) -> tuple[bool, int]:
    """Sort swaps to the front, as they happen; all others stay in the order of the scenario."""
    return (False, event.first_round(rounds)) if event.kind == "swap" else (True, 0)


def _effect(
    event: DriftEvent, position: int, seed: int, sites: int, classes: Sequence[str], plan: DriftPlan, drawers: Index
) -> _Effect:
    """Draw one event; `plan` holds those before it."""
    where = f"drift event {position + 1} ({event.kind})"
    lots = generator(seed, f"drift {position} samples").random(len(plan.labels))[drawers]
    drawn = generator(seed, f"drift {position}").permutation(sites)
    affected = np.zeros(sites, np.bool_)
    vanishing = np.zeros((sites, len(classes)), np.bool_)
    partners = np.arange(sites + 1, dtype=np.int64)
    if event.kind == "swap":
        if sites < 2:
            raise SettingsError(f"{where}: there is nobody to exchange data with (sites = {sites})")
        shares = plan.label_shares(event.first_round(plan.rounds), sites, len(classes))
        one, other = _pairs(event, drawn, shares, where)
        partners[one], partners[other] = other, one
        affected[one] = affected[other] = True
        return _Effect(event, lots, partners, affected, vanishing)
    if isinstance(event.sites, tuple):
        affected[_numbers(event.sites, sites, where)] = True
    else:
        affected[drawn[: max(1, _rounded(event.sites * sites))]] = True
    if event.kind == "vanish":
        known = {name: index for index, name in enumerate(classes)}
        for name in event.classes:
            if name not in known:
                raise SettingsError(f"{where}: class {name!r} is not in the agreed class list ({', '.join(classes)})")
        vanishing[:, [known[name] for name in event.classes]] = True
        if not event.classes:
            first = event.first_round(plan.rounds)
            for site in np.flatnonzero(affected):
                train = plan.holding(int(site), first).train
                vanishing[site, np.argmax(np.bincount(plan.labels[train], minlength=len(classes)))] = True
    return _Effect(event, lots, partners, affected, vanishing)


def _pairs(event: DriftEvent, drawn: Index, shares: NDArray[np.float64], where: str) -> tuple[Index, Index]:
    """Return who exchanges data with whom, as two equally long arrays of sites.

    Of a share of the sites one half is drawn, and their partners are chosen among all others such that the total
    variation between the label shares of partners is largest in sum. Where labels come in disjoint groups of about
    equal size, everybody's partner is of another group (Hall's theorem: no group outnumbers those to choose from).
    """
    if isinstance(event.sites, tuple):
        named = _numbers(event.sites, len(shares), where)
        return named[::2], named[1::2]
    # Only where a scenario of a simulation swaps sites.
    from scipy.optimize import linear_sum_assignment

    count = min(max(1, _rounded(event.sites * len(shares) / 2)), len(shares) // 2)
    one, others = drawn[:count], drawn[count:]
    variation = np.abs(shares[one][:, np.newaxis] - shares[others]).sum(axis=2) / 2
    return one, others[linear_sum_assignment(variation, maximize=True)[1]]


def _numbers(names: Sequence[str], sites: int, where: str) -> Index:
    known = {f"{number:03d}": number for number in range(sites)}
    for name in names:
        if name not in known:
            raise SettingsError(
                f"{where}: {name!r} is not the name of a simulated site; they are called 000 to {sites - 1:03d}"
            )
    return np.array([known[name] for name in names], np.int64)


def _rounded(value: float) -> int:
    """To the nearest whole number, and halves up, where Python's own `round` goes to the even one."""
    return math.floor(value + 0.5)
