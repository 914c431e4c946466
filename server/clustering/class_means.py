"""Do the means of a class differ between sites by more than the scatter within the class explains?

With n_ic samples of class c at site i, m_c sites that have the class and n_c samples of it in all: mu_ic is the mean at
a site, mu_c that of all, and t_c = sum_i n_ic s_ic / (n_c - m_c) the trace of the covariance within the class.

- Each class by itself: sum_c sum_i n_ic |mu_ic - mu_c|^2. Finds classes that mean something else somewhere.
- All classes of a site together: sum_i |sum_c n_ic (mu_ic - mu_c)|^2 / n_i. Finds a device, which moves all classes the
  same way, even where a site has hardly more than one sample of each.

Where sites are few, each of them is also tested in both ways against all others together: one that differs is then not
watered down by those that do not.

All are divided by what they are expected to be, given the t_c: a ratio of 1 whatever the covariances. How far it
strays hangs on how many directions the scatter really has, and on its tails. Both are estimated from the sites, and
give the degrees of freedom of an F distribution (Satterthwaite 1946).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc
from threadpoolctl import threadpool_limits

from common.signature import Signature

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# What is known of the effective dimension before the sites are looked at: that it is not small. It counts as much as
# three sites with two classes do.
PRIOR_SHAPE, PRIOR_WEIGHT = 1 / 8, 8.0
# Sites of a class from which its effective dimension is estimated: more would only cost time.
MOST_SITES = 256
# Up to so many sites each is also tested against all others together.
FEW = 5
# float32 prototypes differ by their rounding, which is no difference.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Scatter:
    """What is known of the noise: per class float64[C], and over all classes.

    Attributes
    ----------
    trace, within
        t_c, and the n_c - m_c samples that it is known from.
    shape
        tr(S^2) / tr(S)^2 of a covariance S: one over its effective dimension.
    tail
        Variance of |x - mu|^2 / t: twice the shape for a normal distribution, more with heavy tails.
    """

    trace: Vector
    within: Vector
    shape: float
    tail: float

    def chance(self, ratio: float, expected: float, normal: float, few: float, parts: Vector) -> float:
        """p of a sum of squares that is `ratio` times what was `expected`, sum_c parts_c t_c.

        Its variance is `normal` times twice the shape, and `few` times what tails add where a mean has few samples.
        """
        spread = 2 * self.shape * normal + (self.tail - 2 * self.shape) * few
        error = float((parts**2 * self.trace**2 * self.tail / self.within).sum())
        return float(fdtrc(2 * expected**2 / spread, 2 * expected**2 / error, ratio))


@dataclass(frozen=True)
class _Class:
    """The sites that have a class: which, their samples, the deviations float64[m, d] of their means, their scatter."""

    sites: NDArray[np.int64]
    samples: Vector
    deviations: Matrix
    scatter: Vector
    length: float

    @property
    def free(self) -> int:
        return len(self.sites) - 1

    @property
    def within(self) -> float:
        return float(self.samples.sum()) - len(self.sites)

    @property
    def trace(self) -> float:
        return float(self.samples @ self.scatter) / self.within

    @property
    def apart(self) -> float:
        return float(self.samples @ np.einsum("nd,nd->n", self.deviations, self.deviations))

    @property
    def shape(self) -> tuple[float, float]:
        """An estimate of the shape times its weight, and the weight.

        The standardised deviations are normal draws by the central limit. With W their Gram matrix of rank q,
        E tr(W^2) = q tr(S)^2 + q (q + 1) tr(S^2) and E tr(W)^2 = q^2 tr(S)^2 + 2 q tr(S^2). Where sites really differ,
        they do so in few directions, and the estimate comes out too large: the test then asks for more, not for less.
        """
        rows = np.sqrt(self.samples)[:, None] * self.deviations
        if len(rows) > MOST_SITES:
            rows = rows[np.argsort(-self.samples, kind="stable")[:MOST_SITES]]
            rows = rows - rows.mean(axis=0)
        rank = len(rows) - 1
        gram = rows @ rows.T
        scale = float(np.trace(gram)) / rank
        if rank < 2 or scale <= 0:
            return 0.0, 0.0
        return float(np.einsum("ij,ij->", gram, gram)) / scale**2 - rank, float((rank + 2) * (rank - 1))

    @property
    def tail(self) -> tuple[float, int]:
        """The same for the tail, from how much the sites' scatters differ."""
        several = self.samples > 1
        if not several.any() or self.trace <= 0:
            return 0.0, 0
        more = self.samples[several] - 1
        unbiased = self.scatter[several] * self.samples[several] / more
        return float(more @ (unbiased / self.trace - 1) ** 2), int(several.sum()) - 1


def chance_of_means(signatures: Sequence[Signature], counts: Sequence[Vector]) -> float:
    """p of the smaller of the two tests, doubled; `counts` are the samples of each signature's classes.

    Of few sites also of the smallest test of one against the others, times two for each site. Together both find a
    difference that is not there more often than either, but less often than twice (`docs/grouping.md` has how often).
    1 where nothing can be said: no class is at two sites and has two samples at one of them.
    """
    return _tested(signatures, counts, lambda classes, scatter: _all_tests(classes, scatter, len(signatures)))


def chance_of_last(signatures: Sequence[Signature], counts: Sequence[Vector]) -> float:
    """The same of the last site against all others together; the others may differ from each other."""
    last = len(signatures) - 1
    return _tested(signatures, counts, lambda classes, scatter: _alone(classes, scatter, last))


def _tested(
    signatures: Sequence[Signature], counts: Sequence[Vector], test: Callable[[Sequence[_Class], Scatter], float]
) -> float:
    # The bits of a product depend on the number of threads.
    with threadpool_limits(limits=1, user_api="blas"):
        classes = list(_classes(signatures, counts))
        between = sum(one.apart for one in classes)
        if not classes or between <= ROUNDING * sum(one.length for one in classes):
            return 1.0
        scatter = _scatter(classes, signatures[0].dimension)
        if float(scatter.trace.sum()) <= ROUNDING * between:
            return 0.0
        return min(1.0, 2 * test(classes, scatter))


def _all_tests(classes: Sequence[_Class], scatter: Scatter, count: int) -> float:
    found = _smaller(classes, scatter, count)
    if 2 < count <= FEW:
        found = min(found, count * min(_alone(classes, scatter, site) for site in range(count)))
    return found


def _alone(classes: Sequence[_Class], scatter: Scatter, site: int) -> float:
    """The smaller test of a site against all others; 1 if it has no class of theirs, or none that scatters."""
    against, known = _against_others(classes, scatter, site)
    return _smaller(against, known, 2) if known.trace.any() else 1.0


def _against_others(classes: Sequence[_Class], scatter: Scatter, site: int) -> tuple[list[_Class], Scatter]:
    """The classes of a site as if all others were one site; how samples scatter is known as before."""
    kept = [place for place, one in enumerate(classes) if site in one.sites]
    found = []
    for one in (classes[place] for place in kept):
        own = one.sites == site
        samples = np.array([one.samples[own].sum(), one.samples[~own].sum()])
        others = one.samples[~own] @ one.deviations[~own] / samples[1]
        deviations = np.vstack([one.deviations[own], others])
        found.append(_Class(np.array([0, 1]), samples, deviations, np.zeros(2), one.length))
    return found, replace(scatter, trace=scatter.trace[kept], within=scatter.within[kept])


def _smaller(classes: Sequence[_Class], scatter: Scatter, sites: int) -> float:
    return min(_by_class(classes, scatter), _by_site(classes, scatter, sites))


def _by_class(classes: Sequence[_Class], scatter: Scatter) -> float:
    free = np.array([one.free for one in classes], np.float64)
    inverse = np.array([((1 - one.samples / one.samples.sum()) ** 2 / one.samples).sum() for one in classes])
    expected = float(free @ scatter.trace)
    squares = scatter.trace**2
    ratio = sum(one.apart for one in classes) / expected
    return scatter.chance(ratio, expected, float(free @ squares), float(inverse @ squares), free)


def _by_site(classes: Sequence[_Class], scatter: Scatter, sites: int) -> float:
    shift = np.zeros((sites, classes[0].deviations.shape[1]))
    table = np.zeros((sites, len(classes)))
    for column, one in enumerate(classes):
        shift[one.sites] += one.samples[:, None] * one.deviations
        table[one.sites, column] = one.samples
    present = table.sum(axis=1) > 0
    shift, table = shift[present], table[present]
    shares = table / table.sum(axis=1, keepdims=True)
    # Covariances of the sites' shifts: diag(own) - common common', in units of length.
    own = shares @ scatter.trace
    common = table * np.sqrt(scatter.trace / table.sum(axis=0)) / np.sqrt(table.sum(axis=1, keepdims=True))
    overlap = (common**2).sum(axis=1)
    inner = common.T @ common
    normal = float((own**2 - 2 * own * overlap).sum() + np.einsum("cd,cd->", inner, inner))
    few = float(((own - overlap) ** 2 / table.sum(axis=1)).sum())
    parts = (shares * (1 - table / table.sum(axis=0))).sum(axis=0)
    expected = float(parts @ scatter.trace)
    if expected <= 0 or normal <= 0:
        return 1.0
    squares = float((np.einsum("nd,nd->n", shift, shift) / table.sum(axis=1)).sum())
    return scatter.chance(squares / expected, expected, normal, few, parts)


def _scatter(classes: Sequence[_Class], dimension: int) -> Scatter:
    shapes, tails = [one.shape for one in classes], [one.tail for one in classes]
    shape = (sum(value for value, _ in shapes) + PRIOR_WEIGHT * PRIOR_SHAPE) / (
        sum(weight for _, weight in shapes) + PRIOR_WEIGHT
    )
    shape = min(max(shape, 1 / dimension), 1.0)
    weight = sum(weight for _, weight in tails)
    tail = sum(value for value, _ in tails) / weight if weight else 0.0
    trace, within = (np.array([getattr(one, name) for one in classes]) for name in ("trace", "within"))
    return Scatter(trace, within, shape, max(tail, 2 * shape))


def _classes(signatures: Sequence[Signature], counts: Sequence[Vector]) -> Iterator[_Class]:
    """The classes that tell something: at two sites or more, and with two samples at one of them."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for site, signature in enumerate(signatures):
        for row, label in enumerate(signature.classes.tolist()):
            rows.setdefault(label, []).append((site, row))
    for label in sorted(rows):
        samples = np.array([counts[site][row] for site, row in rows[label]])
        if len(samples) < 2 or samples.sum() <= len(samples):
            continue
        prototypes = np.stack([signatures[site].prototypes[row] for site, row in rows[label]], dtype=np.float64)
        yield _Class(
            sites=np.array([site for site, _ in rows[label]]),
            samples=samples,
            deviations=prototypes - samples @ prototypes / samples.sum(),
            scatter=np.array([signatures[site].scatter[row] for site, row in rows[label]]),
            length=float(samples @ np.einsum("nd,nd->n", prototypes, prototypes)),
        )
