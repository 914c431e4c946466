"""Class shares are a reason to group only where they are not in every site's softmax."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.grouping_truth import SPECTRA, World, draw
from common.config import Config, FlatValue, parse
from common.site_card import SiteCard
from server.asking.enrolment import WriteTask
from server.clustering import adjusted_rand_index, appearance_distance, overlap_distance
from server.history.events import Audience, Event, GroupsFormed
from server.listeners.progress import _grouping
from server.membership import Membership
from server.methods.fmcl import METHOD
from server.methods.training import Federation, GroupingRule
from server.roster import Member

SITES, CLASSES = 20, 10


def members(world: World, seed: int = 0) -> tuple[list[Member], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    signatures, sizes, groups = draw(world, SITES, CLASSES, equal=True, spectrum=SPECTRA["isotropic"], rng=rng)
    found = []
    for index, (signature, size) in enumerate(zip(signatures, sizes.tolist(), strict=True)):
        counts = np.zeros(CLASSES, np.int64)
        counts[signature.classes] = np.rint(signature.shares * size)
        card = SiteCard(f"{index:02d}", size, 9, tuple(counts.tolist()), 0, ())
        found.append(Member(card, index + 1, signature))
    return found, groups


def configured(**values: FlatValue) -> Config:
    return parse({"sites": SITES, "train": {"prior": values.pop("prior", "site")}, "cluster": values})


def formed(sites: list[Member], config: Config) -> GroupsFormed:
    heard: list[Event] = []

    class Heard:
        def hear(self, event: Event) -> None:
            heard.append(event)

    membership = Membership(config, METHOD, {}, {}, Audience([Heard()]), cast("WriteTask", None))
    for site in sites:
        membership.roster.add(site)
    membership.form_groups(GroupingRule(config, cast("Federation", None)))
    (event,) = [one for one in heard if isinstance(one, GroupsFormed)]
    return event


def test_other_class_shares_in_the_softmax_leave_one_group_and_the_log_says_why() -> None:
    sites, _ = members(World("", alpha=0.1))
    event = formed(sites, configured())
    assert set(event.labels) == {0}
    assert event.chance is not None
    said = _grouping(event)
    assert said.startswith("20 sites in 1 group; the sites' class shares differ (p < 0.001), but every site's own")
    assert said.endswith("their images do not differ by more than chance (p = 1.00)")
    for apart in (configured(prior="off"), configured(rule="published")):
        assert len(set(formed(sites, apart).labels)) > 1


def test_without_a_common_class_nothing_connects_the_groups() -> None:
    sites, groups = members(World("", disjoint=True))
    event = formed(sites, configured())
    assert event.chance is not None
    assert event.chance.parts == 5
    assert adjusted_rand_index(np.array(event.labels), groups) == 1.0


@pytest.mark.parametrize(("alpha", "least"), [(0.5, 1.0), (0.1, 0.8)])
def test_devices_are_found_behind_label_skew(alpha: float, least: float) -> None:
    sites, groups = members(World("", alpha=alpha, device=1.0))
    signatures, sizes = [site.fingerprint for site in sites], [site.card.named_samples for site in sites]
    event = formed(sites, configured())
    assert adjusted_rand_index(np.array(event.labels), groups) >= least
    assert np.array_equal(event.distance, appearance_distance(signatures, sizes))
    # Where shares count and differ, they are in the distance; the published rule knows no other.
    off = formed(sites, configured(prior="off"))
    assert np.array_equal(off.distance, overlap_distance(signatures, rule="guarded"))
    published = formed(sites, configured(rule="published"))
    assert np.array_equal(published.distance, overlap_distance(signatures, rule="published"))


def test_a_newcomer_is_placed_as_the_groups_were_made() -> None:
    sites, groups = members(World("", alpha=0.1, device=1.0), seed=1)
    assert METHOD.place is not None
    right = {"site": 0, "off": 0}
    for left in range(SITES):
        others = [site for index, site in enumerate(sites) if index != left]
        labels = np.delete(groups, left)
        for prior in right:
            placed = METHOD.place(others, labels, sites[left], configured(prior=prior))
            right[prior] += placed.group == groups[left]
    assert right["site"] == SITES
    assert right["off"] < SITES
