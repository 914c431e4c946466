"""What one site holds: its samples, split into training and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.decoded import Decoded, decode
from client.data.partition import partition
from client.data.samples import Fault, Samples
from client.data.sources import open_source
from client.data.split import split
from client.identity import Identity, cache_folder
from common.classes import agreed_classes
from common.config import DataSettings, PartitionSettings, SettingsError, SiteSettings
from common.randomness import derive_seed

_SHOWN_REASONS = 5


class NoUsableData(ValueError):
    """A site that has nothing to train on; the message names the site and the first reasons."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        more = len(reasons) - _SHOWN_REASONS
        shown = "; ".join(reasons[:_SHOWN_REASONS]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(f"site {name} has no usable data: {shown}")
        self.name, self.reasons = name, tuple(reasons)


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
        The whole source; in a simulation other sites hold the rest of it.
    train, test : int64
        Sorted positions in `samples`.
    faults
        What the source has but nobody can use.
    """

    name: str
    classes: tuple[str, ...]
    samples: Samples
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    faults: tuple[Fault, ...]
    _pixels: NDArray[np.uint8] = field(repr=False)

    def train_images(self) -> NDArray[np.uint8]:
        """Return uint8[n, size, size, channels] at the training resolution."""
        return np.asarray(self._pixels[self.train])

    def test_images(self) -> NDArray[np.uint8]:
        """Return uint8[n, size, size, channels] at the training resolution."""
        return np.asarray(self._pixels[self.test])

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Class indices of the training samples."""
        return self.samples.labels[self.train]

    @property
    def test_labels(self) -> NDArray[np.int64]:
        """Class indices of the test samples."""
        return self.samples.labels[self.test]

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """int64[C]: training samples per agreed class."""
        return np.bincount(self.train_labels, minlength=len(self.classes)).astype(np.int64)


def load_site(identity: Identity, settings: SiteSettings) -> SiteData:
    """Open a site's own data, or its share of the common data set in a simulation.

    Raises
    ------
    SettingsError
        If the site or the run is not set up for it.
    NoUsableData
        If nothing is left to train on.
    """
    data, cache = settings.data, cache_folder(identity, settings.cache)
    if identity.data_path is not None:
        # Not kept in memory: the operator may add images at any time.
        samples, decoded = _open(data, identity.data_path, cache)
        share = _usable(decoded, len(samples))
    elif identity.partition is not None:
        index, count = identity.partition
        if not 0 <= index < count:
            raise SettingsError(
                f"partition-id = {index} in the node config must lie in 0..{count - 1} (num-partitions)"
            )
        samples, decoded = _open_common(data, cache)
        share = _shares(data, cache, settings.partition, settings.seed, count)[index]
    else:
        # A path named by the server must never be opened on a site's disk.
        raise SettingsError(f"site {identity.name} has no data: set data-path in the node config of its SuperNode")
    faults = samples.faults + tuple(
        Fault(samples.name(position), failure.reason) for position, failure in decoded.failures.items()
    )
    if identity.data_path is None and identity.partition is not None and identity.partition[0] > 0:
        # One common data set, one report of what is wrong with it.
        faults = ()
    if len(share) == 0:
        reasons = [f"{fault.name} {fault.reason}" for fault in faults]
        raise NoUsableData(identity.name, reasons or [f"no images found in {identity.data_path}"])
    train, test = split(
        samples.labels[share],
        None if samples.groups is None else samples.groups[share],
        samples.splits[share],
        data.test_fraction,
        _lots(samples, share, settings.seed, identity.name),
    )
    train, test = share[train], share[test]
    return SiteData(
        name=identity.name,
        classes=agreed_classes(data),
        samples=samples,
        train=train,
        test=test,
        faults=faults,
        _pixels=decoded.pixels,
    )


def _open(data: DataSettings, path: Path | None, cache: Path) -> tuple[Samples, Decoded]:
    samples = open_source(data, path, agreed_classes(data), cache)
    return samples, decode(samples, data.image_size, data.channels, cache)


@lru_cache(maxsize=2)
def _open_common(data: DataSettings, cache: Path) -> tuple[Samples, Decoded]:
    """Open the data set that all simulated sites of this process share."""
    return _open(data, None, cache)


@lru_cache(maxsize=2)
def _shares(
    data: DataSettings, cache: Path, settings: PartitionSettings, seed: int, count: int
) -> list[NDArray[np.int64]]:
    """Deal out what could be decoded, as positions in the common data set."""
    samples, decoded = _open_common(data, cache)
    usable = _usable(decoded, len(samples))
    groups = None if samples.groups is None else samples.groups[usable]
    return [usable[share] for share in partition(samples.labels[usable], groups, count, settings, seed)]


def _usable(decoded: Decoded, count: int) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(count, dtype=np.int64), np.fromiter(decoded.failures, np.int64))


def _lots(samples: Samples, share: NDArray[np.int64], seed: int, site: str) -> NDArray[np.float64]:
    """Draw a number for each sample that depends on its name alone, so that new samples do not move old ones."""
    return np.array([derive_seed(seed, f"split {samples.name(int(row))}", site) for row in share], np.float64)
