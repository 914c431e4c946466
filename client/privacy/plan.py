"""How much noise each kind of answer gets, so that a budget lasts for as many of them as its owner says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from client.privacy.accountant import Release, calibrated
from common.privacy import PrivacySettings


@dataclass(frozen=True)
class Plan:
    """Noise of one answer of each kind, in multiples of what a single sample changes at most.

    Attributes
    ----------
    description, step
        Of samples that train: what the site says of them, and a step of training.
    tested, test
        Of samples that are tested on: how many there are, and a test.
    """

    description: float
    step: float
    tested: float
    test: float


@lru_cache(maxsize=32)
def plan_of(settings: PrivacySettings) -> Plan:
    """The least noise with which the budget lasts.

    Samples that train and samples that are tested on are others, so that each of the two has the whole budget.
    """

    def releases(factor: float) -> Iterator[Release]:
        yield Release(factor * description, times=settings.descriptions)
        if settings.steps:
            yield Release(factor * step, settings.rate, settings.steps)

    def tests(factor: float) -> Iterator[Release]:
        yield Release(factor * description, times=settings.descriptions)
        if settings.tests:
            yield Release(factor * test, times=settings.tests)

    # Costs of Gaussian noise are in proportion to times / σ².
    description = math.sqrt(settings.descriptions / settings.share)
    step = settings.rate * math.sqrt(max(settings.steps, 1) / (1 - settings.share))
    test = math.sqrt(max(settings.tests, 1) / (1 - settings.share))
    train_factor, test_factor = (calibrated(plan, settings.epsilon, settings.delta) for plan in (releases, tests))
    return Plan(train_factor * description, train_factor * step, test_factor * description, test_factor * test)
