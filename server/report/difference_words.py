"""What kind of difference is between the groups, in words, and what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from server.clustering import GroupDifference
from server.clustering.difference import Kind

_WHAT: dict[Kind, str] = {
    "shares": "class shares",
    "images": "how samples of a class look",
    "both": "both",
    "neither": "neither by more than chance",
    "unknown": "no class in common",
}

DIFFERENCE_COLUMNS = (
    "groups", "shares differ by", "by chance", "same class differs by", "by chance alone", "what differs",
)  # fmt: skip


def difference_words(pairs: Sequence[GroupDifference]) -> str:
    """What differs between the groups, and what follows."""
    tally = Counter(pair.kind for pair in pairs)
    kind = min(tally, key=lambda one: (-tally[one], one))
    most = "" if tally[kind] == len(pairs) else f" (so {tally[kind]} of {len(pairs)} pairs of groups)"
    shares = float(np.median([pair.shares for pair in pairs]))
    images = _images(pairs)
    seen = f"class shares differ by {shares:.0%} of the samples"
    looks = "samples of the same class by no more than chance"
    if images is not None and images >= 0.005:
        looks = f"samples of the same class by {images:.0%} of what different classes do"
    match kind:
        case "shares":
            return (
                f"Which classes they have, not how samples of a class look: {seen}, {looks}{most}. The sites' own "
                "class shares in the softmax (train.prior = 'site') handle that; with them one model for all (FedAvg) "
                "may do as well as groups, so run it beside this."
            )
        case "images":
            return (
                f"How samples of the same class look, or what the labels mean: {looks}, {seen}{most}. Groups are for "
                "that."
            )
        case "both":
            return (
                f"Both which classes they have and how samples of a class look: {seen}, {looks}{most}. The class "
                "shares in the softmax (train.prior = 'site') handle the first; groups are for the second."
            )
        case "neither":
            return (
                f"Neither the classes nor their samples differ by more than chance and enough to matter: {seen}, "
                f"{looks}{most}. One model for all (FedAvg) is likely to do as well."
            )
        case "unknown":
            return (
                f"That cannot be told{most}: the groups have no class in common, so nobody knows whether samples of "
                "one class would look alike. The class shares in the softmax (train.prior = 'site') handle what is "
                "known to differ."
            )


def _images(pairs: Sequence[GroupDifference]) -> float | None:
    """The median difference of samples of one class that is left beyond chance."""
    known = [
        max(pair.images - (0.0 if np.isnan(pair.images_by_chance) else pair.images_by_chance), 0.0)
        for pair in pairs
        if not np.isnan(pair.images)
    ]
    return float(np.median(known)) if known else None


def difference_rows(pairs: Sequence[GroupDifference]) -> list[tuple[str | float, ...]]:
    """One row per pair of groups, the most different images first."""
    ordered = sorted(pairs, key=lambda pair: (-np.nan_to_num(pair.images, nan=-1.0), pair.one, pair.other))
    return [
        (f"{pair.one} and {pair.other}", pair.shares, pair.shares_by_chance, pair.images, pair.images_by_chance,
         _WHAT[pair.kind])
        for pair in ordered
    ]  # fmt: skip
