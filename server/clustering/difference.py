"""What kind of difference is between two groups: which classes they have, or how samples of a class look.

The distance of FMCL mixes both. Here they are told apart, each beside what chance alone would give: a group's class
shares and class means are estimates from the samples that its sites happen to have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature
from server.clustering.appearance import class_traces

Kind = Literal["shares", "images", "both", "neither", "unknown"]

# What counts as a difference: a quarter of the samples would have to change class; samples of a class differ between
# the groups by a tenth of what different classes differ.
SHARES_DIFFER = 0.25
IMAGES_DIFFER = 0.1
# Times chance that a difference of means must be: the noise of a mean strays about its expectation.
_BEYOND_CHANCE = 2.0
# Pairs grow with the square.
_MOST_GROUPS = 60


@dataclass(frozen=True)
class GroupDifference:
    """How two groups differ.

    Attributes
    ----------
    one, other
        The groups.
    shares, shares_by_chance
        Total variation between their class shares: the part of the samples that would have to be of another class; and
        what two draws of as many samples from the same shares would give.
    images, images_by_chance
        Cosine distance between the means of a class in the one and in the other, weighted by the shares that both
        have, in parts of the distance between the means of different classes; and what it would be by chance. NaN: they
        have no class in common, or there is a single class; by chance: the scatter within a class is not known.
    """

    one: int
    other: int
    shares: float
    shares_by_chance: float
    images: float
    images_by_chance: float

    @property
    def kind(self) -> Kind:
        """What differs by more than chance, and by enough to matter."""
        by_shares = self.shares - self.shares_by_chance >= SHARES_DIFFER
        if np.isnan(self.images):
            return "unknown"
        chance = 0.0 if np.isnan(self.images_by_chance) else self.images_by_chance
        by_images = self.images - chance >= IMAGES_DIFFER and self.images >= _BEYOND_CHANCE * chance
        if by_shares:
            return "both" if by_images else "shares"
        return "images" if by_images else "neither"


def group_differences(
    signatures: Sequence[Signature], sizes: Sequence[int], labels: Sequence[int]
) -> list[GroupDifference]:
    """Compare every two groups.

    Parameters
    ----------
    signatures, sizes, labels
        Of each site: its signature, the samples that this describes, its group.

    Returns
    -------
    One entry for every pair of groups, in the order of their numbers; of very many groups, of the largest.
    """
    tally = Counter(labels)
    groups = sorted(sorted(tally, key=lambda group: (-tally[group], group))[:_MOST_GROUPS])
    chosen = [place for place, label in enumerate(labels) if label in groups]
    signatures, sizes = [signatures[place] for place in chosen], [sizes[place] for place in chosen]
    labels = [labels[place] for place in chosen]
    counts = [signature.shares * size for signature, size in zip(signatures, sizes, strict=True)]
    member = [groups.index(label) for label in labels]
    of_group, group_means = _pooled(signatures, counts, member, len(groups))
    # Within groups, because labels may mean other things in another; where each has a single class, over all of them.
    within = [distance for mine in group_means if not np.isnan(distance := _between_classes(mine))]
    scale = (
        float(np.mean(within)) if within else _between_classes(_pooled(signatures, counts, [0] * len(member), 1)[1][0])
    )
    variance = _variance(signatures, counts, member, group_means)
    shares = of_group / of_group.sum(axis=1, keepdims=True)
    found = []
    for one in range(len(groups)):
        for other in range(one + 1, len(groups)):
            by_chance = _shares_by_chance(of_group[one], of_group[other])
            images, noise = _class_means(
                group_means[[one, other]], of_group[[one, other]], shares[[one, other]], variance
            )
            found.append(
                GroupDifference(
                    groups[one],
                    groups[other],
                    float(np.abs(shares[one] - shares[other]).sum() / 2),
                    by_chance,
                    images / scale,
                    noise / scale,
                )
            )
    return found


def _pooled(
    signatures: Sequence[Signature], counts: Sequence[NDArray[np.float64]], member: Sequence[int], groups: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Samples [K, C] and means [K, C, d] of every class in every group; 0 where it lacks the class.

    Site by site: an array of all sites' classes would be mostly empty, and larger than memory where both are many.
    """
    classes = max(int(one.classes[-1]) for one in signatures) + 1
    of_group = np.zeros((groups, classes))
    sums = np.zeros((groups, classes, signatures[0].dimension))
    for signature, own, group in zip(signatures, counts, member, strict=True):
        of_group[group, signature.classes] += own
        sums[group, signature.classes] += own[:, np.newaxis] * signature.prototypes
    sums /= np.maximum(of_group, 1e-300)[:, :, np.newaxis]
    return of_group, sums


def _between_classes(means: NDArray[np.float64]) -> float:
    """Mean cosine distance between the means of two different classes; NaN where there is one class only."""
    lengths = np.linalg.norm(means, axis=1)
    unit = means[lengths > 0] / lengths[lengths > 0, np.newaxis]
    count = len(unit)
    if count < 2:
        return float("nan")
    total = float(np.square(unit.sum(axis=0)).sum())  # of all cosines, each class with itself among them
    distance = 1 - (total - count) / (count * (count - 1))
    return distance if distance > 0 else float("nan")


def _variance(
    signatures: Sequence[Signature],
    counts: Sequence[NDArray[np.float64]],
    member: Sequence[int],
    group_means: NDArray[np.float64],
) -> NDArray[np.float64]:
    """E|x − mean|² of a sample within a class, float64[C]; NaN where it cannot be known.

    By the scatter that the sites sent; without it by how far the means of a group's sites lie apart: n |m − mean|² is
    then one draw of it.
    """
    if any(signature.scatter.any() for signature in signatures):
        return class_traces(signatures, counts)
    groups, classes, _ = group_means.shape
    within, present = np.zeros(classes), np.zeros((groups, classes))
    for signature, own, group in zip(signatures, counts, member, strict=True):
        apart = np.square(signature.prototypes - group_means[group, signature.classes]).sum(axis=1)
        within[signature.classes] += apart * own
        present[group, signature.classes] += 1
    freedom = np.maximum(present - 1, 0).sum(axis=0)
    return np.where(freedom > 0, within / np.maximum(freedom, 1), np.nan)


def _shares_by_chance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Expected total variation between two draws of as many samples from their common shares (normal approximation)."""
    size, other_size = one.sum(), other.sum()
    common = (one + other) / (size + other_size)
    spread = np.sqrt(common * (1 - common) * (1 / size + 1 / other_size))
    return float(np.sqrt(2 / np.pi) * spread.sum() / 2)


def _class_means(
    means: NDArray[np.float64], counts: NDArray[np.float64], shares: NDArray[np.float64], variance: NDArray[np.float64]
) -> tuple[float, float]:
    """Cosine distance between two groups' class means, weighted by shared shares, and what chance would give."""
    weight = shares.min(axis=0)
    lengths = np.linalg.norm(means, axis=2)
    common = (weight > 0) & (lengths.min(axis=0) > 0)
    if not common.any():
        return float("nan"), float("nan")
    weight = weight[common] / weight[common].sum()
    product = lengths[0, common] * lengths[1, common]
    cosine = np.einsum("cd,cd->c", means[0, common], means[1, common]) / product
    # |a − b|² / (2 |a| |b|) for a and b of nearly the same length.
    noise = variance[common] * (1 / counts[:, common]).sum(axis=0) / (2 * product)
    known = ~np.isnan(noise)
    by_chance = float((weight * noise)[known].sum() / weight[known].sum()) if known.any() else float("nan")
    return float((weight * np.maximum(1 - cosine, 0)).sum()), by_chance
