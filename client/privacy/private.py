"""A site with a privacy budget: whatever it says of its data has noise, and is paid for before it is drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from client.data import SiteData
from client.discretion import Discretion, Plain, Told
from client.identity import Identity
from client.memory import open_memory
from client.policy.gate import ledger_of
from client.policy.ledger import Ledger, Part
from client.privacy.accountant import Release
from client.privacy.budget import Budget
from client.privacy.description import CENTRE, SUMS, Released, describe
from client.privacy.noise import SeededSource, Source, SystemSource
from client.privacy.plan import plan_of
from client.privacy.statistics import noisy
from client.privacy.training import PrivateTraining
from client.training import Training
from common import wire
from common.encoders import HEADS
from common.metrics import EvaluationStatistics
from common.privacy import PrivacySettings
from common.signature import Signature
from common.site_card import Spending

Embed = Callable[[], NDArray[np.float32]]


def discretion_of(identity: Identity, task: wire.Task, site: SiteData, embedded: Embed) -> Discretion:
    """How a site says what it knows: a real one as its own policy has it, a simulated one as the run does."""
    settings = privacy_of(identity, task)
    return Private(settings, identity, task, site, embedded) if settings.is_on else Plain(site, embedded)


def privacy_of(identity: Identity, task: wire.Task) -> PrivacySettings:
    """The privacy settings of a site."""
    return task.settings.privacy if identity.is_simulated else identity.policy.privacy


class Private:
    """Describes itself once in a run, and goes by that description ever after.

    Parameters
    ----------
    settings
        Of the budget.
    identity, task
        Who is asked for what.
    site
        The site's data.
    embedded
        Makes the embeddings of its training samples.
    """

    is_private = True

    def __init__(
        self, settings: PrivacySettings, identity: Identity, task: wire.Task, site: SiteData, embedded: Embed
    ) -> None:
        self._settings, self._plan = settings, plan_of(settings)
        self._identity, self._task, self._site, self._embedded = identity, task, site, embedded
        self._memory = open_memory(identity, task, "privacy")
        # Of a simulated site nothing is at stake: its ledger is as short-lived as its memory.
        ledger = Ledger(self._memory.folder / "ledger.jsonl") if identity.is_simulated else ledger_of(identity)
        self._budget = Budget(settings, ledger, repeats=identity.is_simulated)

    @property
    def name(self) -> str:
        """Of the site."""
        return self._site.name

    def told(self, least: int) -> Told:
        """Counts with noise, however small a class is; which files cannot be used is not told."""
        released = self._released()
        tested = released.test_samples if self._identity.policy.tests else 0
        return Told(released.told, 0, tested, 0)

    def signature(self) -> Signature:
        """Class means from sums with noise."""
        return self._released(SUMS).signature(self._settings.length)

    def statistics(self, found: EvaluationStatistics) -> EvaluationStatistics:
        """With noise."""
        if not self._identity.policy.tests:
            return found
        samples, round_number = self._released().test_samples, self._task.tests
        about = f"a test of the models of round {round_number}"
        self._spend("test", Release(self._plan.test), about, round_number)
        return noisy(found, samples, sigma=self._plan.test, source=self._source("test", round_number))

    def expected(self) -> NDArray[np.floating]:
        """Counts with noise."""
        return self._released().likely

    def training(self) -> Training:
        """DP-SGD."""
        released, round_number = self._released(), self._task.round_number
        private = PrivateTraining(
            settings=self._settings,
            sigma=self._plan.step,
            samples=released.samples,
            centre=released.mean,
            source=self._source("training", round_number),
            spend=lambda release: self._spend("train", release, f"training in round {round_number}", round_number),
        )
        return Training(private.train, private.measure)

    def spending(self) -> Spending | None:
        """From the ledger."""
        return Spending(self._settings.epsilon, self._settings.delta, self._budget.spent)

    def _released(self, *parts: str) -> Released:
        """What the site has told in this run; it is told now if it was not, or not all of it."""
        wanted = {*parts, CENTRE} if self._task.settings.train.model in HEADS else set(parts)
        remembered = self._memory.recall(0)
        if remembered is not None and all(len(remembered[part]) for part in wanted):
            return Released.of(remembered)
        about = " and ".join(["a description by counts", *sorted(wanted)])
        self._spend("train", Release(self._plan.description), about, 0)
        self._spend("test", Release(self._plan.tested), "how many samples are tested on", 0)
        released = describe(
            self._site.train_labels,
            len(self._site.classes),
            len(self._site.test),
            self._embedded() if wanted else None,
            frozenset(wanted),
            length=self._settings.length,
            sigma=self._plan.description,
            test_sigma=self._plan.tested,
            source=self._source(about, 0),
        )
        self._memory.remember(0, released.arrays())
        return released

    def _spend(self, part: Part, release: Release, about: str, round_number: int) -> None:
        self._budget.spend(part, release, about=about, run=self._task.run, round_number=round_number)

    def _source(self, purpose: str, round_number: int) -> Source:
        if self._identity.is_simulated:
            return SeededSource(self._task.settings.seed, purpose, self._site.name, round_number)
        return SystemSource()
