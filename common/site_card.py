"""What a site says of itself: its card, and the form of whatever else it may say before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Spending:
    """What a site has spent of its privacy budget, (ε, δ), on all that it ever told of its data."""

    budget: float
    delta: float
    spent: float


@dataclass(frozen=True)
class SiteCard:
    """Site → server, with its first answer: who it is, how much data it has, whether it wants to keep a model.

    `weights` is the digest of what its network does not learn, if that is pretrained: hexadecimal, the same everywhere.
    `withheld` counts the training samples of classes that are too small for the site to name; `class_counts` has 0 for
    those. `spending`: of its privacy budget, when it introduced itself; None: it has none, and its numbers are exact.
    """

    name: str
    train_samples: int
    test_samples: int
    class_counts: tuple[int, ...]
    fault_count: int
    faults: tuple[str, ...]
    keeps: bool = False
    weights: str = ""
    withheld: int = 0
    spending: Spending | None = None

    @property
    def named_samples(self) -> int:
        """Training samples of the classes that it names: those that a fingerprint of classes describes."""
        return sum(self.class_counts)


class Fingerprint:
    """What a site may say about its data before training. One subclass for each kind; its fields are arrays.

    A subclass is a frozen dataclass that checks its own invariants when it is made, with a `ValueError` for each.
    """

    # The name of the kind, which is also that of the query that asks for it.
    kind: ClassVar[str]
    # Whether it describes images; a table has none.
    of_images: ClassVar[bool] = False
    # Whether it has a label for each of the site's samples, so that no class can be left out of its counts.
    by_row: ClassVar[bool] = False
    # What sites must agree on for their fingerprints to be comparable, in words.
    agreement: ClassVar[str]

    @property
    def form(self) -> str:
        """What must be alike for two fingerprints to be compared, in words."""
        raise NotImplementedError

    def check(self, card: SiteCard) -> None:
        """Raise a `ValueError` unless this can come from the site that the card describes."""
