"""What Gaussian noise hides, counted: Rényi differential privacy, composed and turned into (ε, δ).

Two sites are neighbours if one has a single sample more than the other. A release adds noise of standard deviation
σ Δ to what one sample changes by at most Δ; in a step of training each sample takes part with probability q. The
Rényi divergence of order α between what two neighbours send is bounded by ε(α); over releases these bounds add up
(Mironov 2017), also where later questions depend on earlier answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Small orders serve large ε, large ones small ε.
ORDERS: Vector = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 65), 2.0 ** np.arange(7, 13)])

# Below this noise hides next to nothing, and the integral is not worth computing.
_LEAST_SIGMA = 1e-3
# The integrand is a Gaussian of width σ about 0 and one about α: so many σ beyond them nothing is left of either.
_REACH = 12.0


@dataclass(frozen=True)
class Release:
    """`times` releases alike: noise of `sigma` times the most that one sample changes, of samples drawn at `rate`."""

    sigma: float
    rate: float = 1.0
    times: int = 1

    def __post_init__(self) -> None:
        if not (self.sigma >= 0 and 0 <= self.rate <= 1 and self.times >= 0):
            raise ValueError(f"{self} is no release")


def renyi(release: Release) -> Vector:
    """ε(α) of one kind of release, for each of `ORDERS`."""
    if release.times == 0 or release.rate == 0:
        return np.zeros(len(ORDERS))
    if release.sigma < _LEAST_SIGMA:
        return np.full(len(ORDERS), np.inf)
    if release.rate == 1:
        # D_α(N(0, σ²) ‖ N(1, σ²)) = α / (2 σ²), Mironov 2017, proposition 7.
        return release.times * ORDERS / (2 * release.sigma**2)
    return release.times * np.array([_sampled(release.sigma, release.rate, order) for order in ORDERS.tolist()])


def _sampled(sigma: float, rate: float, order: float) -> float:
    """log A_α / (α − 1), A_α = E_{z ~ N(0, σ²)} [(1 − q + q exp((2 z − 1) / (2 σ²)))^α].

    Mironov, Talwar and Zhang 2019, sections 3.1 and 3.3, for any order. By the trapezoidal rule, which for an analytic
    function that fades at both ends is off by e^(-2 π w / h), with w the distance of the next singularity (here π σ²).
    """
    step = sigma * min(1 / 8, sigma / 2)
    z = np.arange(-_REACH * sigma, order + _REACH * sigma + step, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))
    logs = order * ratio - z**2 / (2 * sigma**2)
    top = float(logs.max())
    total = top + math.log(float(np.exp(logs - top).sum()) * step / (sigma * math.sqrt(2 * math.pi)))
    return max(total, 0.0) / (order - 1)


def compose(releases: Iterable[Release]) -> Vector:
    """ε(α) of everything together."""
    counted: dict[tuple[float, float], int] = {}
    for release in releases:
        alike = release.sigma, release.rate
        counted[alike] = counted.get(alike, 0) + release.times
    return sum((renyi(Release(*alike, times)) for alike, times in counted.items()), np.zeros(len(ORDERS)))


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """The least ε for which everything together is (ε, δ)-differentially private, by any of `ORDERS`.

    Canonne, Kamath and Steinke 2020, proposition 12: ε = ε(α) + log((α − 1) / α) − (log δ + log α) / (α − 1).
    """
    found = compose(releases)
    if not found.any():
        return 0.0
    bounds = found + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(float(bounds.min()), 0.0)


def calibrated(plan: Callable[[float], Iterable[Release]], budget: float, delta: float) -> float:
    """The least factor of noise, to a thousandth, at which a plan stays within (budget, δ); more noise, less ε."""
    low, high = 1e-3, 1.0
    while epsilon(plan(high), delta) > budget:
        low, high = high, high * 2
        if high > 2.0**40:
            raise ValueError(f"no noise keeps this plan within epsilon = {budget:g} at delta = {delta:g}")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(plan(middle), delta) <= budget else (middle, high)
    return high
