"""What a site tells of its samples before training: how many of each class, the sums of their embeddings, with noise.

All of it is one release. Each part has a share of the noise's budget: with weights that sum to 1, a part that one
sample changes by at most Δ gets noise of σ Δ / √weight, and all parts together cost what one release with σ does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from client.privacy.noise import Source, blurred, clipped
from common.signature import Signature
from common.state import State

Floats = NDArray[np.float64]
COUNTS, SUMS, CENTRE = "counts", "sums", "centre"
# Counts decide more than sums do: class shares, weights and what sums are divided by.
_WEIGHTS = {COUNTS: 2.0, SUMS: 2.0, CENTRE: 1.0}
# A class whose count is within so many standard deviations of nothing may be noise, and is not told of.
_LEAST_DEVIATIONS = 1.0
# A class of one sample could have no scatter.
_LEAST_COUNT = 2


@dataclass(frozen=True)
class Released:
    """Told once in a run; all else that the site says of its samples follows from it.

    Attributes
    ----------
    counts : float64[C]
        Training samples per class, with noise.
    tested : float
        Samples of the test split, with noise.
    blur : float
        Standard deviation of the noise in each of the counts.
    sums, centre : float64[C, d], float64[d], or empty
        Sums of clipped embeddings, per class and of all, with noise.
    sums_blur : float
        Standard deviation of the noise in each number of `sums`.
    """

    counts: Floats
    tested: float
    blur: float
    sums: Floats
    centre: Floats
    sums_blur: float

    @property
    def told(self) -> NDArray[np.int64]:
        """Whole numbers for the card: 0 for a class that noise may have made. Somebody is always there."""
        whole = np.rint(self.counts).astype(np.int64)
        found = np.where(whole >= max(_LEAST_COUNT, _LEAST_DEVIATIONS * self.blur), whole, 0)
        if not found.any():
            found[whole.argmax()] = max(int(whole.max()), _LEAST_COUNT)
        return found

    @property
    def likely(self) -> Floats:
        """Counts as class shares are made of: none below zero."""
        return np.maximum(self.counts, 0.0)

    @property
    def samples(self) -> int:
        """Training samples, as far as anybody is to know: what an update counts for."""
        return int(self.told.sum())

    @property
    def test_samples(self) -> int:
        """Samples of the test split, as far as anybody is to know; at least one, or nobody would ask."""
        return max(round(self.tested), 1)

    @property
    def mean(self) -> NDArray[np.float32]:
        """Mean embedding of the training samples."""
        found: NDArray[np.float32] = (self.centre / self.samples).astype(np.float32)
        return found

    def signature(self, length: float) -> Signature:
        """The signature of the classes that are told of.

        The scatter says how far a prototype is off by chance, noise included: |x|² is at most length², of the square of
        a noisy mean the noise's part is known, and a count that is off makes all of a prototype longer or shorter.
        """
        told = self.told
        classes = np.flatnonzero(told)
        counts = told[classes].astype(np.float64)
        means = self.sums[classes] / counts[:, None]
        noise = means.shape[1] * (self.sums_blur / counts) ** 2
        square = np.clip(np.einsum("cd,cd->c", means, means) - noise, 0.0, length**2)
        # As a scatter of n samples, which is 1 / n smaller than the variance that makes their mean uncertain. Readers
        # take the mean over sites by their counts, in which one that noise made small would be forgotten.
        usual = np.maximum(counts, counts.mean()) - 1
        scatter = length**2 - square + usual * (noise + square * (self.blur / counts) ** 2)
        return Signature(classes, means.astype(np.float32), counts / counts.sum(), scatter)

    def arrays(self) -> State:
        """As a site remembers it."""
        numbers = np.array([self.tested, self.blur, self.sums_blur])
        return {COUNTS: self.counts, SUMS: self.sums, CENTRE: self.centre, "numbers": numbers}

    @classmethod
    def of(cls, arrays: State) -> Self:
        """The same again."""
        tested, blur, sums_blur = arrays["numbers"].tolist()
        return cls(arrays[COUNTS], tested, blur, arrays[SUMS], arrays[CENTRE], sums_blur)


def describe(
    labels: NDArray[np.int64],
    classes: int,
    tested: int,
    embeddings: NDArray[np.float32] | None,
    parts: frozenset[str],
    *,
    length: float,
    sigma: float,
    test_sigma: float,
    source: Source,
) -> Released:
    """Tell of training samples: counts always, and of `parts` those that are asked for.

    Parameters
    ----------
    labels : int64[n]
    classes
        How many there are; of one that the site does not have there is noise.
    tested
        Samples of the test split.
    embeddings : float32[n, d] or None
        Of the samples, if more than counts is asked for.
    parts
        Any of SUMS and CENTRE.
    length
        Longer embeddings are shortened.
    sigma, test_sigma
        Noise, in multiples of what one sample changes.
    """
    total = sum(weight for part, weight in _WEIGHTS.items() if part in parts | {COUNTS})
    blur = {part: sigma * math.sqrt(total / weight) for part, weight in _WEIGHTS.items()}
    counts = blurred(np.bincount(labels, minlength=classes), blur[COUNTS], source)
    sums = centre = np.zeros(0)
    if parts:
        assert embeddings is not None
        rows = clipped(embeddings, length)
        if SUMS in parts:
            exact = np.zeros((classes, rows.shape[1]))
            np.add.at(exact, labels, rows)
            sums = blurred(exact, blur[SUMS] * length, source)
        if CENTRE in parts:
            centre = blurred(rows.sum(axis=0), blur[CENTRE] * length, source)
    return Released(
        counts=counts,
        tested=float(blurred(tested, test_sigma, source)),
        blur=blur[COUNTS],
        sums=sums,
        centre=centre,
        sums_blur=blur[SUMS] * length,
    )
