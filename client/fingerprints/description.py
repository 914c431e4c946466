"""What a site compares itself with: its class shares and class means, and how far chance alone may move them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A probability too small for a float counts as this many standard deviations.
CERTAIN = 38.0


@dataclass(frozen=True)
class Description:
    """A site's training samples in numbers.

    Attributes
    ----------
    classes : int64[C], increasing
        The classes that are present.
    counts : int64[C]
        Samples of each.
    means : float32[C, d]
        Mean embedding of each.
    scatter : float64[C]
        Mean squared distance of a class's samples from their mean.
    spread
        tr Σ² of the within-class covariance Σ, all classes taken together: how unevenly the scatter is spread over
        directions, on which it depends how much a distance between means varies by chance.
    """

    classes: NDArray[np.int64]
    counts: NDArray[np.int64]
    means: NDArray[np.float32]
    scatter: NDArray[np.float64]
    spread: float

    @property
    def pooled(self) -> float:
        """tr Σ: the scatter of all classes together, without bias; 0 where every class has a single sample."""
        freedom = int((self.counts - 1).sum())
        return float((self.scatter * self.counts).sum() / freedom) if freedom else 0.0


def describe(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> Description:
    """Describe embeddings float32[n, d] with labels int64[n]."""
    classes, rows, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.stack([embeddings[labels == label].mean(axis=0, dtype=np.float64) for label in classes])
    residuals = embeddings - means[rows]
    scatter = np.bincount(rows, np.square(residuals).sum(axis=1)) / counts
    return Description(
        classes.astype(np.int64), counts.astype(np.int64), means.astype(np.float32), scatter,
        _spread(residuals, len(labels) - len(classes)),
    )  # fmt: skip


def _spread(residuals: NDArray[np.float64], freedom: int) -> float:
    """tr Σ² without the bias that few samples give it (Srivastava 2005), and never less than its least, (tr Σ)² / d."""
    if freedom < 2:
        return 0.0
    # Of the two products, which have the same non-zero eigenvalues, the smaller one.
    few = len(residuals) <= residuals.shape[1]
    product = (residuals @ residuals.T if few else residuals.T @ residuals) / freedom
    trace, squares = float(np.trace(product)), float(np.square(product).sum())
    unbiased = (squares - trace**2 / freedom) * freedom**2 / ((freedom - 1) * (freedom + 2))
    return float(max(unbiased, trace**2 / residuals.shape[1]))


def change(before: Description, after: Description) -> float:
    """How far a site is from what it was, in standard deviations of what drawing its samples anew would do; from 0.

    Class shares are compared by the χ² test of homogeneity. The means of common classes are compared by
    T = Σ_c ‖μ_c − μ′_c‖² n_c n′_c / (n_c + n′_c), whose expectation by chance is tr Σ for each class and whose variance
    is 2 tr Σ². That is a multiple of a χ² with (tr Σ)² / tr Σ² degrees of freedom for each class, and the estimate of
    tr Σ is one with as many for each sample beyond one per class: the ratio of the two is compared with F. The smaller
    of the two probabilities, doubled because there are two, is returned as the normal deviate that is as improbable.

    Samples that are in both make the difference smaller than chance would: the test errs on the quiet side.
    """
    # Here and below, not for everybody: only where data may change is it asked.
    from scipy.stats import norm

    probability = min(1.0, 2 * min(_of_shares(before, after), _of_means(before, after)))
    return float(np.clip(norm.isf(probability), 0.0, CERTAIN))


def _of_shares(before: Description, after: Description) -> float:
    from scipy.stats import chi2

    classes = np.union1d(before.classes, after.classes)
    if len(classes) < 2:
        return 1.0
    counts = np.zeros((2, len(classes)))
    for row, one in enumerate((before, after)):
        counts[row, np.searchsorted(classes, one.classes)] = one.counts
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return float(chi2.sf((np.square(counts - expected) / expected).sum(), len(classes) - 1))


def _of_means(before: Description, after: Description) -> float:
    from scipy.stats import f

    common, old, new = np.intersect1d(before.classes, after.classes, return_indices=True)
    trace, spread = before.pooled, before.spread
    if not len(common) or trace <= 0 or spread <= 0:
        return 1.0
    distances = np.square(before.means[old].astype(np.float64) - after.means[new]).sum(axis=1)
    n, m = before.counts[old], after.counts[new]
    total = float((distances * n * m / (n + m)).sum())
    # a χ²(f) has mean a f and variance 2 a² f.
    freedom = trace**2 / spread
    ratio = total / len(common) / trace
    return float(f.sf(ratio, len(common) * freedom, int((before.counts - 1).sum()) * freedom))
