"""Simulated sites of several kinds: images from another device, or the same images by other names.

What kind a sample is of is decided by the site it was dealt to, and stays with it: whoever gets it by a swap sees it as
it is. Kind 0 has the data as they are. All draws are functions of the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from client.data.alterations import Alteration, Change
from client.data.samples import ImageSamples, Samples, TableSamples
from common.config import PartitionSettings, SettingsError
from common.randomness import generator
from common.table import Table
from common.worlds import site_kinds

Index = NDArray[np.int64]

# What a device may do to an image, and between which strengths it is drawn: each is plain to see, none hides the image.
_STRENGTHS: dict[Change, tuple[float, float]] = {
    "invert": (1.0, 1.0),
    "rotate": (0.3, 0.7),
    "blur": (0.3, 0.6),
    "noise": (0.2, 0.4),
    "contrast": (0.4, 0.7),
    "colour": (0.4, 0.8),
}
_STEPS = 2

Recipe = tuple[tuple[Change, float], ...]


@dataclass(frozen=True, eq=False)
class World:
    """A data set as the sites of a simulation see it.

    Attributes
    ----------
    samples
        By the names and with the columns that their sites have for them.
    kinds : int64[n]
        Kind of the site that each sample was dealt to; 0 for nobody's.
    recipes
        What the device of each kind does to images.
    """

    samples: Samples
    kinds: Index
    recipes: tuple[Recipe, ...]

    def alterations(self, held: Index) -> tuple[Alteration, ...]:
        """Return what the devices did to the images among `held`, sorted positions."""
        return tuple(
            Alteration(change, strength, held[self.kinds[held] == kind])
            for kind in np.unique(self.kinds[held])
            for change, strength in self.recipes[kind]
        )


def world(
    samples: Samples, shares: Sequence[Index], settings: PartitionSettings, classes: int, seed: int, table: Table | None
) -> World:
    """Make the world that the settings ask for of a data set and its shares, one for each site.

    Raises `SettingsError` if labels should mean more different things than there are classes.
    """
    of_site = site_kinds(settings, len(shares), seed)
    kinds = np.zeros(len(samples), np.int64)
    for share, kind in zip(shares, of_site, strict=True):
        kinds[share] = kind
    none: tuple[Recipe, ...] = ((),) * settings.kinds
    match settings.shift:
        case "none":
            return World(samples, kinds, none)
        case "concept":
            return World(_renamed(samples, kinds, settings.kinds, classes, seed), kinds, none)
        case "devices":
            if isinstance(samples, TableSamples) and table is not None:
                return World(_remeasured(samples, kinds, settings.kinds, table, seed), kinds, none)
            assert isinstance(samples, ImageSamples)
            return World(samples, kinds, recipes(settings.kinds, seed))


def recipes(kinds: int, seed: int) -> tuple[Recipe, ...]:
    """Draw what the device of each kind does: nothing for kind 0, else two changes, no others than its neighbours'."""
    rng = generator(seed, "devices")
    drawn: list[Recipe] = [()]
    changes: list[Change] = []
    while len(drawn) < kinds:
        if not changes:
            changes = [list(_STRENGTHS)[place] for place in rng.permutation(len(_STRENGTHS))]
        chosen, changes = changes[:_STEPS], changes[_STEPS:]
        drawn.append(tuple((change, round(float(rng.uniform(*_STRENGTHS[change])), 3)) for change in chosen))
    return tuple(drawn)


def namings(kinds: int, classes: int, seed: int) -> Index:
    """Return what each kind calls each class, int64[kinds, classes]; no two kinds call any class the same."""
    if kinds > classes:
        raise SettingsError(
            f"partition.kinds = {kinds} is more than the {classes} classes in the data: with partition.shift = "
            "'concept' no two kinds call a class the same"
        )
    order = generator(seed, "concepts").permutation(classes)
    names = np.empty((kinds, classes), np.int64)
    for kind in range(kinds):
        names[kind, order] = np.roll(order, -kind)
    return names


def _renamed(samples: Samples, kinds: Index, count: int, classes: int, seed: int) -> Samples:
    return replace(samples, labels=namings(count, classes, seed)[kinds, samples.labels])


def _remeasured(samples: TableSamples, kinds: Index, count: int, table: Table, seed: int) -> TableSamples:
    """Scale and move every column of numbers, in its own spread, as the instrument of each kind does."""
    rng = generator(seed, "instruments")
    numeric = np.concatenate([np.full(column.width, not column.categories) for column in table.columns])
    factors = np.exp(rng.uniform(-np.log(2), np.log(2), (count, len(numeric))))
    offsets = rng.uniform(-1, 1, (count, len(numeric)))
    factors[0], offsets[0] = 1, 0
    factors[:, ~numeric], offsets[:, ~numeric] = 1, 0
    rows = (samples.rows * factors[kinds] + offsets[kinds]).astype(np.float32)
    digest = hashlib.sha256(samples.digest.encode() + rows.tobytes()).hexdigest()
    return replace(samples, rows=rows, digest=digest)
