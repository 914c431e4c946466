"""What a site has spent of its budget: lines of a ledger, on disk before the answer that they are for is drawn."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from client.policy.ledger import Entry, Ledger, Part
from client.policy.rules import Declined
from client.privacy.accountant import Release, epsilon
from common.privacy import PrivacySettings

PARTS: tuple[Part, ...] = ("train", "test")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Budget:
    """The budget of one site.

    Attributes
    ----------
    settings
        What it may spend.
    ledger
        What it has spent is here, of all runs.
    repeats
        Whether the same question in the same round gets the same noise, as in a simulation: then it costs once.
    """

    settings: PrivacySettings
    ledger: Ledger
    repeats: bool = False

    def spend(self, part: Part, release: Release, *, about: str, run: str, round_number: int) -> None:
        """Note a release about the samples of one part, or raise `Declined` if there is not enough left for it."""
        line = Entry(
            at=time.time(),
            what="spent",
            run=run,
            round=round_number,
            text=about,
            part=part,
            sigma=release.sigma,
            rate=release.rate,
            times=release.times,
        )
        with self.ledger.held() as held:
            if self.repeats and any(_same(line, entry) for entry in held.entries):
                return
            releases = list(releases_of(held.entries, part))
            before = epsilon(releases, self.settings.delta)
            after = epsilon([*releases, release], self.settings.delta)
            if after > self.settings.epsilon + _ROUNDING:
                raise Declined(
                    f"policy.privacy.epsilon = {self.settings.epsilon:g}, of which {before:.3g} is spent, and {about} "
                    f"would bring it to {after:.3g}"
                )
            held.append(line)

    @property
    def spent(self) -> float:
        """ε so far: a sample is in one part only, so the larger of the two."""
        return spent_of(self.ledger.entries(), self.settings.delta)


def spent_of(entries: Iterable[Entry], delta: float) -> float:
    """ε that the lines of a ledger add up to."""
    lines = list(entries)
    return max(epsilon(releases_of(lines, part), delta) for part in PARTS)


def releases_of(entries: Iterable[Entry], part: Part) -> Iterable[Release]:
    """What was told of the samples of one part."""
    for entry in entries:
        if entry.what == "spent" and entry.part == part:
            yield Release(entry.sigma, entry.rate, entry.times)


def _same(one: Entry, other: Entry) -> bool:
    return one.model_copy(update={"at": other.at}) == other
