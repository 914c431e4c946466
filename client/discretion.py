"""How a site says what it knows of its own data. Plainly here; `client.privacy` has one that says it with noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from client.data import SiteData
from client.training import Training
from common.metrics import EvaluationStatistics
from common.signature import Signature
from common.site_card import Spending


@dataclass(frozen=True)
class Told:
    """What a card says in numbers: training samples of each class, of others, test samples, unusable files."""

    counts: NDArray[np.int64]
    withheld: int
    tested: int
    faults: int


class Discretion(Protocol):
    """What is said of a site's data, wherever something may leave it.

    `is_private`: not even that something failed may tell of a sample.
    """

    is_private: bool

    def told(self, least: int) -> Told:
        """For the card; classes of fewer than `least` samples are not named."""

    def signature(self) -> Signature:
        """The signature of the training samples."""

    def statistics(self, found: EvaluationStatistics) -> EvaluationStatistics:
        """Of a test on the site's own test split."""

    def expected(self) -> NDArray[np.floating]:
        """Training samples of each class, as class shares in a softmax are made of."""

    def training(self) -> Training:
        """How networks learn from the training samples."""

    def spending(self) -> Spending | None:
        """Of the privacy budget, so far; None: there is none."""


class Plain:
    """As it is.

    Parameters
    ----------
    site
        The site's data.
    embedded
        Makes the embeddings of its training samples.
    """

    is_private = False

    def __init__(self, site: SiteData, embedded: Callable[[], NDArray[np.float32]]) -> None:
        self._site, self._embedded = site, embedded

    def told(self, least: int) -> Told:
        """Of classes that are too small to be described only the sum of their samples is told."""
        counts = self._site.told_counts(least)
        withheld = int(self._site.class_counts.sum() - counts.sum())
        return Told(counts, withheld, len(self._site.test), len(self._site.faults))

    def signature(self) -> Signature:
        """Class means, as FMCL has them."""
        # Only now: fingerprints are made from requests, and a request has a discretion.
        from client.fingerprints.signature import signature

        return signature(self._embedded(), self._site.train_labels)

    def statistics(self, found: EvaluationStatistics) -> EvaluationStatistics:
        """The same."""
        return found

    def expected(self) -> NDArray[np.floating]:
        """The counts."""
        return self._site.class_counts.astype(np.float64)

    def training(self) -> Training:
        """SGD."""
        return Training()

    def spending(self) -> Spending | None:
        """There is no budget."""
        return None
