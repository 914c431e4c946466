"""What one site holds: its samples, split into training and test."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as once
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.alterations import Alteration, altered, altered_samples
from client.data.decoded import Decoded, decode
from client.data.drift import DriftPlan, plan_drift
from client.data.partition import partition
from client.data.samples import Fault, ImageSamples, Samples, TableSamples
from client.data.sources import open_source
from client.data.split import split, split_for_good
from client.data.worlds import World, world
from client.identity import Identity, cache_folder
from common.classes import agreed_classes
from common.config import DataSettings, PartitionSettings, SettingsError, SiteSettings
from common.drift import DriftEvent
from common.randomness import derive_seed
from common.site_name import RULE, is_site_name

_log = logging.getLogger("coterie")

Index = NDArray[np.int64]

_SHOWN_REASONS = 5
OWN = "own"  # the scheme of sites that bring their own data into a simulation


class NoUsableData(ValueError):
    """A site that has nothing to train on; the message names the site and the first reasons.

    `is_empty`: nothing is there, not even what cannot be used.
    """

    def __init__(self, name: str, reasons: Sequence[str], *, is_empty: bool = False) -> None:
        more = len(reasons) - _SHOWN_REASONS
        shown = "; ".join(reasons[:_SHOWN_REASONS]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(f"site {name} has no usable data: {shown}")
        self.name, self.reasons, self.is_empty = name, tuple(reasons), is_empty


@dataclass(frozen=True, eq=False)
class SiteData:
    """The data of one site.

    Attributes
    ----------
    name
        Of the site.
    classes
        The agreed class list.
    samples
        The whole source, as this site sees it; in a simulation other sites hold the rest of it.
    train, test : int64
        Sorted positions in `samples`.
    faults
        What the source has but nobody can use.
    split_seed
        What decides which of its samples are on which side: the run's seed, or the site's own.
    secret
        A number that only who has the data can know, for lots that nobody may foretell; None at a simulated site.
    """

    name: str
    classes: tuple[str, ...]
    samples: Samples
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    faults: tuple[Fault, ...]
    _pixels: NDArray[np.uint8] = field(repr=False)
    split_seed: int = 0
    secret: int | None = field(default=None, repr=False)
    _alterations: tuple[Alteration, ...] = field(default=(), repr=False)
    # Positions in `samples` → what a frozen encoder makes of them; None: models read the samples themselves.
    _embed: Callable[[SiteData, Index], NDArray[np.float32]] | None = field(default=None, repr=False)

    def through(self, embed: Callable[[SiteData, Index], NDArray[np.float32]]) -> SiteData:
        """The same site, whose models read what `embed` makes of its samples."""
        return replace(self, _embed=embed)

    def train_inputs(self) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Return what a model trains on: images, the scaled rows float32[n, m] of a table, or embeddings of either."""
        if self._embed is not None:
            return self._embed(self, self.train)
        return self._rows(self.train) if isinstance(self.samples, TableSamples) else self.train_images()

    def test_inputs(self) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Return what a model is tested on."""
        if self._embed is not None:
            return self._embed(self, self.test)
        return self._rows(self.test) if isinstance(self.samples, TableSamples) else self.test_images()

    @property
    def images(self) -> ImageSamples:
        """The samples of a site that has images."""
        if not isinstance(self.samples, ImageSamples):
            raise SettingsError(f"site {self.name} holds a table, and an encoder needs images")
        return self.samples

    def _rows(self, positions: Index) -> NDArray[np.float32]:
        assert isinstance(self.samples, TableSamples)
        return self.samples.rows[positions]

    def train_images(self) -> NDArray[np.uint8]:
        """Return uint8[n, size, size, channels] at the training resolution."""
        return altered(np.asarray(self._pixels[self.train]), self.train, self._alterations)

    def test_images(self) -> NDArray[np.uint8]:
        """Return uint8[n, size, size, channels] at the training resolution."""
        return altered(np.asarray(self._pixels[self.test]), self.test, self._alterations)

    @cached_property
    def train_labels(self) -> NDArray[np.int64]:
        """Class indices of the training samples."""
        return self.samples.labels[self.train]

    @cached_property
    def test_labels(self) -> NDArray[np.int64]:
        """Class indices of the test samples."""
        return self.samples.labels[self.test]

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """int64[C]: training samples per agreed class."""
        return np.bincount(self.train_labels, minlength=len(self.classes)).astype(np.int64)

    def told_counts(self, least: int) -> NDArray[np.int64]:
        """The same, with 0 for each class of fewer than `least` samples: too small to be told of."""
        return np.where(self.class_counts >= least, self.class_counts, 0)


def load_site(identity: Identity, settings: SiteSettings, round_number: int = 0, rounds: int = 0) -> SiteData:
    """Open a site's own data, or its share of the common data set in a simulation.

    Parameters
    ----------
    identity
        Of the site.
    settings
        Of the run.
    round_number, rounds
        Where the run is and how long it will be: a drift scenario changes what simulated sites hold. Round 0 is
        before any drift.

    Raises
    ------
    SettingsError
        If the site or the run is not set up for it.
    NoUsableData
        If nothing is left to train on.
    """
    cache = cache_folder(identity, settings.cache)
    if identity.data_path is not None:
        own, private = identity.policy.split_seed, identity.policy.privacy.is_on
        # Under a privacy budget one sample more must not send another to the other side.
        return _load_own(
            identity.name,
            identity.data_path,
            settings,
            settings.seed if own is None else own,
            cache,
            secret=(identity.memory or cache / "memory") / "patients.secret",
            for_good=private,
        )
    if identity.partition is None:
        # A path named by the server must never be opened on a site's disk.
        raise SettingsError(f"site {identity.name} has no data: set data-path in the node config of its SuperNode")
    index, count = identity.partition
    if not 0 <= index < count:
        raise SettingsError(f"partition-id = {index} in the node config must lie in 0..{count - 1} (num-partitions)")
    deal = _Deal(settings.data, cache, settings.partition, settings.seed, count)
    own = settings.partition.scheme == OWN and identity.in_engine
    return _load_share(
        own_sites(settings.data, cache)[index] if own and _shares(deal) else identity.name,
        index,
        deal,
        settings.drift,
        # Without drift every round has the same data, which is to be kept once.
        round_number if settings.drift else 0,
        rounds if settings.drift else 0,
    )


# --- a site with data of its own -------------------------------------------------------------------------------


def _load_own(
    name: str, path: Path, settings: SiteSettings, seed: int, cache: Path, *, secret: Path, for_good: bool
) -> SiteData:
    if settings.data.validate_share:
        # A server could have a site's training samples tested one way or the other, run by run.
        raise SettingsError(f"site {name} has data of its own: data.validate_share is for simulated sites")
    if settings.drift:
        _say_that_drift_is_simulated_only(name)
    if settings.data.watch:
        return _read_own(name, path, settings.data, seed, cache, secret=secret, for_good=True)[0]
    loaded, complete = _kept_own(name, path, settings.data, seed, cache, secret=secret, for_good=for_good)
    if not complete:
        # What a failing disk hid may be there next time.
        _kept_own.cache_clear()
    return loaded


def _read_own(
    name: str, path: Path, data: DataSettings, seed: int, cache: Path, *, secret: Path, for_good: bool
) -> tuple[SiteData, bool]:
    """Return a site's own data, and whether all that is there could be read from the disk."""
    samples, decoded = _open(data, path, cache, secret=secret)
    faults = _faults(samples, decoded)
    share = _usable(decoded, len(samples))
    if len(share) == 0:
        reasons = [f"{fault.name} {fault.reason}" for fault in faults] or [f"no samples found in {path}"]
        # Where a disk is not mounted there is an empty folder.
        raise NoUsableData(name, reasons, is_empty=not faults)
    parted = _split_for_good if for_good else _split
    train, test = parted(samples, share, data.test_fraction, seed, name)
    classes = agreed_classes(data)
    loaded = SiteData(name, classes, samples, train, test, faults, decoded.pixels, seed, _secret(samples))
    return loaded, not any(failure.temporary for failure in decoded.failures.values())


def _secret(samples: Samples) -> int:
    """From what the samples are, of which nobody else knows enough to try it out."""
    return int.from_bytes(hashlib.sha256(samples.digest.encode() + samples.labels.tobytes()).digest(), "big")


_kept_own = lru_cache(maxsize=4)(_read_own)


@once
def _say_that_drift_is_simulated_only(name: str) -> None:
    _log.warning("site %s has data of its own: the drift scenario of this run does not apply to it", name)


# --- simulated sites -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Deal:
    """Everything that decides which simulated site gets what before any drift."""

    data: DataSettings
    cache: Path
    partition: PartitionSettings
    seed: int
    count: int


# Looked up several times in a round.
@lru_cache(maxsize=1024)
def _load_share(
    name: str, index: int, deal: _Deal, scenario: tuple[DriftEvent, ...], round_number: int, rounds: int
) -> SiteData:
    samples, decoded = _open_common(deal.data, deal.cache, deal.partition.scheme == OWN)
    train, test = _part(deal, index)
    drifted: tuple[Alteration, ...] = ()
    if scenario:
        holding = _plan(deal, scenario, rounds).holding(index, round_number)
        train, test, drifted = holding.train, holding.test, holding.alterations
    here = _world(deal)
    alterations = (*here.alterations(np.union1d(train, test)), *drifted)
    return SiteData(
        name=name,
        classes=agreed_classes(deal.data),
        samples=_altered(here.samples, alterations),
        train=train,
        test=test,
        # One common data set, one report of what is wrong with it.
        faults=_faults(samples, decoded) if index == 0 else (),
        _pixels=decoded.pixels,
        split_seed=deal.seed,
        _alterations=alterations,
    )


@lru_cache(maxsize=2)
def _open_common(data: DataSettings, cache: Path, by_site: bool) -> tuple[Samples, Decoded]:
    """Open the data set that all simulated sites of this process share."""
    return _open(data, None, cache, by_site=by_site)


def own_sites(data: DataSettings, cache: Path) -> tuple[str, ...]:
    """The names of the sites whose data a source holds, in order."""
    samples, _ = _open_common(data, cache, True)
    assert samples.sites is not None
    names = tuple(np.unique(samples.sites).tolist())
    for name in names:
        if not is_site_name(name):
            raise SettingsError(f"site {name!r} of the data: a site's name must have {RULE}")
    return names


@lru_cache(maxsize=2)
def _shares(deal: _Deal) -> list[Index]:
    """Deal out what could be decoded, as positions in the common data set."""
    samples, decoded = _open_common(deal.data, deal.cache, deal.partition.scheme == OWN)
    usable = _usable(decoded, len(samples))
    if samples.sites is not None and deal.partition.scheme == OWN:
        names = own_sites(deal.data, deal.cache)
        if len(names) != deal.count:
            raise SettingsError(
                f"sites = {deal.count}, but the data are those of {len(names)} ({', '.join(names)}): leave sites out"
            )
        shares = [usable[samples.sites[usable] == name] for name in names]
        if empty := [name for name, share in zip(names, shares, strict=True) if not len(share)]:
            raise SettingsError(f"site {empty[0]} has not one usable sample: leave its folder or rows out")
        return shares
    groups = None if samples.groups is None else samples.groups[usable]
    return [usable[share] for share in partition(samples.labels[usable], groups, deal.count, deal.partition, deal.seed)]


@lru_cache(maxsize=1024)
def _part(deal: _Deal, index: int) -> tuple[Index, Index]:
    """Return the training and the test samples of a simulated site before any drift.

    By its number and not by its name: under drift, others must know which of its samples are for testing.
    """
    samples, _ = _open_common(deal.data, deal.cache, deal.partition.scheme == OWN)
    train, test = _split(samples, _shares(deal)[index], deal.data.test_fraction, deal.seed, f"{index:03d}")
    if deal.data.validate_share:
        return _split(samples, train, deal.data.validate_share, deal.seed, f"{index:03d} validate")
    return train, test


@lru_cache(maxsize=2)
def _world(deal: _Deal) -> World:
    samples, _ = _open_common(deal.data, deal.cache, deal.partition.scheme == OWN)
    classes = len(agreed_classes(deal.data))
    return world(samples, _shares(deal), deal.partition, classes, deal.seed, deal.data.table)


@lru_cache(maxsize=2)
def _plan(deal: _Deal, scenario: tuple[DriftEvent, ...], rounds: int) -> DriftPlan:
    samples = _world(deal).samples
    return plan_drift(
        scenario,
        seed=deal.seed,
        rounds=rounds,
        labels=samples.labels,
        classes=agreed_classes(deal.data),
        parts=[_part(deal, index) for index in range(deal.count)],
        groups=samples.groups,
    )


# --- both ------------------------------------------------------------------------------------------------------


def _open(
    data: DataSettings, path: Path | None, cache: Path, *, by_site: bool = False, secret: Path | None = None
) -> tuple[Samples, Decoded]:
    samples = open_source(data, path, agreed_classes(data), cache, by_site=by_site, secret=secret)
    if not isinstance(samples, ImageSamples):
        return samples, Decoded(np.empty((len(samples), 0, 0, 0), np.uint8), {})
    return samples, decode(samples, data.image_size, data.channels, cache)


def _altered(samples: Samples, alterations: tuple[Alteration, ...]) -> Samples:
    if isinstance(samples, ImageSamples):
        return altered_samples(samples, alterations)
    if alterations:
        raise SettingsError(f"the drift scenario's {alterations[0].kind!r} is for images, and this run is on a table")
    return samples


def _faults(samples: Samples, decoded: Decoded) -> tuple[Fault, ...]:
    return samples.faults + tuple(
        Fault(samples.name(position), failure.reason) for position, failure in decoded.failures.items()
    )


def _usable(decoded: Decoded, count: int) -> Index:
    return np.setdiff1d(np.arange(count, dtype=np.int64), np.fromiter(decoded.failures, np.int64))


def _split(samples: Samples, share: Index, fraction: float, seed: int, site: str) -> tuple[Index, Index]:
    """Split the positions in `share` by lots that depend on a sample's name alone."""
    lots = np.array([derive_seed(seed, f"split {samples.name(int(row))}", site) for row in share], np.float64)
    groups = None if samples.groups is None else samples.groups[share]
    train, test = split(samples.labels[share], groups, samples.splits[share], fraction, lots)
    return share[train], share[test]


def _split_for_good(samples: Samples, share: Index, fraction: float, seed: int, site: str) -> tuple[Index, Index]:
    """Split the positions in `share` of a source that may change, so that nobody ever changes sides."""
    lots = np.array([derive_seed(seed, f"split {samples.unit(int(row))}", site) for row in share], np.float64) / 2**63
    groups = None if samples.groups is None else samples.groups[share]
    train, test = split_for_good(groups, samples.splits[share], fraction, lots)
    return share[train], share[test]
