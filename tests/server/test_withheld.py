"""Sites that do not name their small classes: what is made of the others is made of the samples that are described."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from common.config import Config, parse
from common.randomness import generator
from common.signature import Signature
from common.site_card import SiteCard
from server.asking.enrolment import WriteTask
from server.clustering import chance_of, find_place, group_differences, overlap_distance
from server.history.events import Audience, Event, GroupsCompared, GroupsFormed
from server.membership import Membership
from server.methods.fmcl import METHOD
from server.methods.training import Federation, GroupingRule
from server.roster import Member

LEAST = 10


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)


def members(shifts: NDArray[np.float64], seed: int = 0) -> list[Member]:
    """Sites of the same class shares, whose samples are moved by shifts float64[N, d]."""
    rng = np.random.default_rng(seed)
    centres = 1 + rng.normal(size=(10, shifts.shape[1]))
    found = []
    for index, shift in enumerate(shifts):
        counts = rng.multinomial(100, np.full(10, 0.1))
        large = np.flatnonzero(counts >= LEAST)
        drawn = [centres[label] + shift + rng.normal(size=(counts[label], len(shift))) for label in large]
        fingerprint = Signature(
            large,
            np.array([one.mean(axis=0) for one in drawn], np.float32),
            counts[large] / counts[large].sum(),
            np.array([one.var(axis=0).sum() for one in drawn]),
        )
        told = np.where(counts >= LEAST, counts, 0)
        withheld = int((counts - told).sum())
        assert withheld > 0
        card = SiteCard(f"{index:02d}", 100, 9, tuple(told.tolist()), 0, (), withheld=withheld)
        found.append(Member(card, index + 1, fingerprint))
    return found


def described(sites: list[Member]) -> tuple[list[Signature], list[int]]:
    signatures = [site.fingerprint for site in sites if isinstance(site.fingerprint, Signature)]
    return signatures, [sum(site.card.class_counts) for site in sites]


def formed(sites: list[Member], config: Config) -> tuple[GroupsFormed, list[GroupsCompared]]:
    heard = Heard()
    # Nobody is asked anything here, and no model is looked at.
    membership = Membership(config, METHOD, {}, {}, Audience([heard]), cast("WriteTask", None))
    for site in sites:
        membership.roster.add(site)
    membership.form_groups(GroupingRule(config, cast("Federation", None)))
    (event,) = [one for one in heard.events if isinstance(one, GroupsFormed)]
    return event, [one for one in heard.events if isinstance(one, GroupsCompared)]


def test_sites_with_the_same_data_are_one_group() -> None:
    sites = members(np.zeros((8, 12)))
    event, compared = formed(sites, parse({"sites": 8}))
    assert set(event.labels) == {0}
    assert not compared
    withheld = np.array([site.card.withheld for site in sites])
    assert event.chance == chance_of(*described(sites), withheld, shares_count=False)
    # By all their samples, as if those were named, they would seem to differ.
    assert chance_of(described(sites)[0], [100] * 8).shares_differ


def test_groups_are_compared_by_the_samples_that_are_described() -> None:
    sites = members(2.0 * np.outer(np.arange(8) % 2, np.random.default_rng(1).normal(size=12)))
    event, (compared,) = formed(sites, parse({"sites": 8}))
    assert event.labels == (0, 1) * 4
    signatures, sizes = described(sites)
    assert compared.pairs == tuple(group_differences(signatures, sizes, event.labels))
    assert compared.pairs != tuple(group_differences(signatures, [100] * 8, event.labels))


def test_a_newcomer_is_redrawn_with_the_samples_that_are_described() -> None:
    # Between groups that do not differ, where redraws fall either way.
    *sites, newcomer = members(np.zeros((9, 12)), seed=1)
    config, labels = parse({"sites": 8}), np.arange(8) % 2
    (*signatures, last), (*sizes, size) = described([*sites, newcomer])
    assert METHOD.place is not None
    placed = METHOD.place(sites, labels, newcomer, config)

    def by(size: int, sizes: list[int]) -> tuple[int, float]:
        rng = generator(config.seed, "newcomer", newcomer.name)
        apart = lambda s, _: overlap_distance(s, rule="guarded")  # noqa: E731
        found = find_place(last, size, signatures, sizes, labels, apart, lambda among: 0.0, rng)
        return found.group, found.confidence

    assert (placed.group, placed.confidence) == by(size, sizes)
    # What it does not name is not missing.
    assert placed.fits
    # With samples that it does not describe it would seem surer than it is.
    assert placed.confidence < by(100, [100] * 8)[1]
