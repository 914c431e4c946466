"""What every site of a secure sum must be told alike, and how many of them it takes.

A coordinator that told the others something else (another model, another learning rate, another unit) could make their
updates vanish from the sum, and what remains would be a single site's. So all of it is in one digest, which every site
computes from what it was told itself, signs, and puts into every key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.state import Extras, State

# A sum of fewer says too much of each of them.
FEWEST = 4
# The array that a masked update is.
MASKED = "masked"


def threshold(members: int) -> int:
    """Whose help it takes to open a sum, and how many updates it has at least: more than two thirds of the members.

    So even with a third of the members on its side, a coordinator cannot have two halves of a group open two sums.
    """
    return 2 * members // 3 + 1


@dataclass(frozen=True)
class Terms:
    """One sum.

    Attributes
    ----------
    members
        Names of the sites that were asked to take part, in order: a site is meant by its place among them.
    capacity
        Upper bound of the samples behind the sum, which fixes the unit that terms are counted in.
    most
        Most samples that an update counts for; 0: there is no limit.
    model
        Digest of the arrays that are trained, and of what goes down beside them.
    """

    members: tuple[str, ...]
    capacity: int
    most: int
    model: bytes

    @property
    def threshold(self) -> int:
        """Fewest updates of the sum."""
        return threshold(len(self.members))

    def weight(self, samples: int) -> int:
        """What an update made from so many samples counts for."""
        return min(samples, self.most) if self.most else samples

    def context(self, task: Mapping[str, str | int]) -> bytes:
        """The digest of these terms, and of the task that they are part of."""
        told = [dict(sorted(task.items())), self.members, self.capacity, self.most, self.model.hex()]
        return hashlib.sha256(json.dumps(told).encode()).digest()


def digest_of(model: State, extras: Extras) -> bytes:
    """The digest of a model and of what travels beside it."""
    digest = hashlib.sha256()
    for record, arrays in (("", model), *sorted(extras.items())):
        for name in sorted(arrays):
            array = arrays[name]
            # Lengths are told, so that no two different things are the same bytes.
            about = json.dumps([record, name, str(array.dtype), array.shape]).encode()
            digest.update(len(about).to_bytes(8, "big") + about)
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
