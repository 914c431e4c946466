"""Migration on plain arrays: the published rule moves the innocent, the guarded rule moves exactly the drifted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import MigrationSettings
from server.migration import (
    Evidence,
    GuardedRule,
    PublishedRule,
    Suspect,
    Verdict,
    by_signature,
)
from server.migration.vectors import medians_of_others
from tests.support.arrays_federation import ArraysFederation

DRIFT = 21
Drift = Callable[[ArraysFederation], None]


@dataclass
class Story:
    """What happened in a federation whose sites may change groups."""

    federation: ArraysFederation
    groups: dict[str, int]
    moves: list[tuple[int, str, int]] = field(default_factory=list)

    @property
    def movers(self) -> set[str]:
        return {site for _, site, _ in self.moves}

    @property
    def misplaced(self) -> set[str]:
        return {site for site, group in self.groups.items() if group != self.federation.kind[site]}


def play(
    drift: Drift, *, rule: str = "guarded", seed: int = 0, rounds: int = 30, sites: int = 20, share: float = 1.0
) -> Story:
    """Train in groups that are right at first, let the data change before round 21, and move whom the rule says."""
    federation = ArraysFederation(sites=sites, seed=seed)
    story = Story(federation, dict(federation.kind))
    settings = MigrationSettings()
    guarded, published = GuardedRule(settings), PublishedRule(settings)
    rng = np.random.default_rng(seed)
    for round_number in range(1, rounds + 1):
        if round_number == DRIFT:
            drift(federation)
        taking_part = set(rng.choice(sorted(story.groups), round(share * sites), replace=False))
        changes = federation.train(story.groups, taking_part)
        if rule == "fedcm":
            verdicts = published.moves(changes, story.groups)
        else:
            heard = {site: federation.losses[site] for site in changes}
            verdicts = examined(guarded, round_number, changes, story.groups, heard)
        for verdict in verdicts:
            group = max(federation.models) + 1 if verdict.target is None else verdict.target
            federation.models.setdefault(group, federation.models[verdict.origin])
            story.groups[verdict.site] = group
            if group != verdict.origin:
                story.moves.append((round_number, verdict.site, group))
            if rule == "guarded":
                guarded.settle(verdict, group, round_number)
    return story


def examined(
    rule: GuardedRule,
    round_number: int,
    changes: dict[str, np.ndarray],
    groups: dict[str, int],
    losses: dict[str, float] | None = None,
) -> Iterator[Verdict]:
    """Judge suspects by direction, one after the other."""
    for suspect in rule.suspects(round_number, changes, groups, losses=losses or {}):
        verdict = rule.by_direction(suspect)
        if verdict is not None:
            yield verdict


def nothing(federation: ArraysFederation) -> None:
    """No drift."""


def four_drifters(federation: ArraysFederation) -> None:
    federation.swap("000", "001")
    federation.swap("002", "003")


SEEDS = range(5)


# --- the experiment that tells the two rules apart -------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_guarded_rule_moves_the_four_drifters_and_nobody_else(seed: int) -> None:
    story = play(four_drifters, seed=seed)
    assert sorted(story.moves) == [(22, "000", 1), (22, "001", 0), (22, "002", 3), (22, "003", 2)]
    assert not story.misplaced


@pytest.mark.parametrize("seed", [0, 1])
def test_the_published_rule_keeps_the_drifters_and_moves_the_innocent(seed: int) -> None:
    story = play(four_drifters, rule="fedcm", seed=seed, rounds=DRIFT)
    moved_at_once = {site for round_number, site, _ in story.moves if round_number == DRIFT}
    assert not moved_at_once & {"000", "001", "002", "003"}
    innocent = {site for site, kind in story.federation.kind.items() if kind < 4} - {"000", "001", "002", "003"}
    assert moved_at_once == innocent


def test_a_drifters_update_is_its_groups_direction_in_the_published_rule() -> None:
    federation = ArraysFederation(seed=0)
    groups = dict(federation.kind)
    for _ in range(DRIFT - 1):
        federation.train(groups)
    four_drifters(federation)
    changes = federation.train(groups)
    total = sum(changes[site] for site, group in groups.items() if group == 0)
    assert _cosine(changes["000"], total) > 0.99
    assert np.linalg.norm(changes["000"]) > 30 * np.linalg.norm(changes["005"])
    assert all(_cosine(changes[site], total) < 0 for site in ("005", "010", "015"))


@pytest.mark.parametrize("seed", SEEDS)
def test_without_drift_nobody_moves_in_30_rounds(seed: int) -> None:
    assert play(nothing, seed=seed).moves == []


# --- harder drifts ----------------------------------------------------------------------------------------------------


def two_together(federation: ArraysFederation) -> None:
    federation.swap("000", "001")
    federation.swap("005", "006")


def one_way(federation: ArraysFederation) -> None:
    federation.follow("000", "001")


def two_one_way(federation: ArraysFederation) -> None:
    federation.follow("000", "001")
    federation.follow("005", "006")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("drift", "sites", "drifted"),
    [
        pytest.param(one_way, 20, {"000"}, id="one site, its new group undisturbed"),
        pytest.param(two_together, 30, {"000", "005", "001", "006"}, id="two of six together"),
        pytest.param(two_together, 20, {"000", "005", "001", "006"}, id="half a group"),
        pytest.param(two_one_way, 20, {"000", "005"}, id="half a group, one way"),
        pytest.param(lambda federation: federation.swap("000", "001"), 10, {"000", "001"}, id="a group of two"),
    ],
)
def test_exactly_the_drifted_move_within_three_rounds(drift: Drift, sites: int, drifted: set[str], seed: int) -> None:
    story = play(drift, seed=seed, sites=sites)
    assert story.movers == drifted
    assert not story.misplaced
    assert max(round_number for round_number, _, _ in story.moves) <= DRIFT + 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_of_one_follows_its_site_instead_of_losing_it(seed: int) -> None:
    # With 5 sites every group has one member: after a swap each model simply learns the new data.
    story = play(lambda federation: federation.swap("000", "001"), seed=seed, sites=5)
    assert story.moves == []
    assert story.federation.accuracy(story.groups) > 0.99


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_participation_only_takes_longer(seed: int) -> None:
    story = play(four_drifters, seed=seed, share=0.4, rounds=60)
    assert story.movers == {"000", "001", "002", "003"}
    assert not story.misplaced


# --- a part of the data: no flapping ----------------------------------------------------------------------------------


def exchanged(share: float) -> Drift:
    def drift(federation: ArraysFederation) -> None:
        federation.mix("000", "001", share)
        federation.mix("002", "003", share)

    return drift


@pytest.mark.parametrize(("share", "seed"), [(0.3, 3), (0.4, 1), (0.6, 0)])
def test_who_is_between_two_groups_makes_one_trip_at_most(share: float, seed: int) -> None:
    story = play(exchanged(share), seed=seed, rounds=DRIFT + 40)
    # With a single round of trial, and nothing remembered of it, the four made up to 16 moves.
    assert story.movers <= {"000", "001", "002", "003"}
    for site in story.movers:
        targets = [group for _, mover, group in story.moves if mover == site]
        # Out, and back if that did not help.
        assert len(targets) <= 2
        assert targets[1:] in ([], [story.federation.kind[site]])
    if share < 0.5:
        assert not story.misplaced


# --- properties -------------------------------------------------------------------------------------------------------


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def _slow_published_rule(changes: dict[str, np.ndarray], groups: dict[str, int], tau: float) -> dict[str, int]:
    directions = {
        group: sum(
            np.linalg.norm(changes[j]) * (changes[j] / np.linalg.norm(changes[j]))
            for j in changes
            if groups[j] == group
        )
        for group in {groups[site] for site in changes}
    }
    moves = {}
    for site, change in changes.items():
        cosines = {group: _cosine(change, direction) for group, direction in sorted(directions.items())}
        if cosines[groups[site]] < tau:
            best = max(cosines, key=lambda group: cosines[group])
            if best != groups[site]:
                moves[site] = best
    return moves


rounds_of_updates = (
    st.integers(0, 2**32 - 1)
    .map(np.random.default_rng)
    .map(
        lambda rng: (
            {f"{site:02d}": rng.normal(size=6) * rng.choice([0.1, 1, 50]) for site in range(12)},
            {f"{site:02d}": int(rng.integers(4)) for site in range(12)},
        )
    )
)


@given(rounds_of_updates, st.sampled_from([-0.5, 0.0, 0.5]))
def test_the_published_rule_is_equations_6_to_9(case: tuple[dict, dict], tau: float) -> None:
    changes, groups = case
    moves = PublishedRule(MigrationSettings(tau=tau)).moves(changes, groups)
    assert {move.site: move.target for move in moves} == _slow_published_rule(changes, groups, tau)


def test_a_silent_group_keeps_its_direction_and_an_empty_one_is_no_target() -> None:
    rule = PublishedRule(MigrationSettings())
    east, north = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    first = {"a": east, "b": east, "c": north}
    assert rule.moves(first, {"a": 0, "b": 0, "c": 1}) == []
    # Group 1 is not heard in this round, but its direction of the last one is remembered.
    (move,) = rule.moves({"a": -3 * east, "b": east + north}, {"a": 0, "b": 0, "c": 1})
    assert (move.site, move.target) == ("b", 1)
    # Now nobody belongs to group 1.
    assert rule.moves({"a": -3 * east, "b": east + north}, {"a": 0, "b": 0}) == []


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=12))
def test_medians_of_others(values: list[float]) -> None:
    slow = [float(np.median(values[:i] + values[i + 1 :])) for i in range(len(values))]
    np.testing.assert_allclose(medians_of_others(np.array(values)), slow)


def _calm_then(rule: GuardedRule, groups: dict[str, int], rng: np.random.Generator, rounds: int = 6) -> None:
    """Let a rule see some calm rounds in which members agree."""
    for round_number in range(1, rounds + 1):
        assert rule.suspects(round_number, _calm(groups, rng), groups) == []


def _calm(groups: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {site: np.eye(8)[group] + rng.normal(0, 0.05, 8) for site, group in groups.items()}


GROUPS = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1}


def _drifting(
    groups: dict[str, int], rng: np.random.Generator, site: str, onto: int, scale: float
) -> dict[str, np.ndarray]:
    """One site pulls away from its own group towards another one."""
    return _calm(groups, rng) | {site: scale * (np.eye(8)[onto] - 0.5 * np.eye(8)[groups[site]])}


@given(st.integers(0, 1000), st.floats(0.001, 1000), st.permutations(sorted(GROUPS)))
def test_neither_scale_nor_names_nor_order_matter(seed: int, scale: float, order: list[str]) -> None:
    def judged(names: dict[str, str], factor: float) -> dict[str, Suspect]:
        rng = np.random.default_rng(seed)
        rule = GuardedRule(MigrationSettings())
        found: list[Suspect] = []
        for round_number in range(1, 9):
            changes = _drifting(GROUPS, rng, "b", 1, 10.0) if round_number > 6 else _calm(GROUPS, rng)
            renamed = {names[site]: factor * change for site, change in changes.items()}
            found = rule.suspects(round_number, renamed, {names[site]: group for site, group in GROUPS.items()})
        back = {new: old for old, new in names.items()}
        return {back[suspect.site]: suspect for suspect in found}

    plain = judged({site: site for site in GROUPS}, 1.0)
    other = judged(dict(zip(sorted(GROUPS), order, strict=True)), scale)
    assert set(plain) == set(other) == {"b"}
    assert other["b"].evidence.cosine == pytest.approx(plain["b"].evidence.cosine)
    assert other["b"].evidence.norm == pytest.approx(scale * plain["b"].evidence.norm)


def test_patience_norm_gate_and_dwell() -> None:
    rng = np.random.default_rng(0)
    settings = MigrationSettings(patience=3, dwell=2)
    rule = GuardedRule(settings)
    _calm_then(rule, GROUPS, rng)
    # An outlier of the usual length is noise.
    for round_number in (7, 8, 9):
        assert rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 1.0), GROUPS) == []
    for round_number in (10, 11):
        assert rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS) == []
        assert rule.is_suspected("a")
    # One calm round and the count starts again.
    assert rule.suspects(12, _calm(GROUPS, rng), GROUPS) == []
    for round_number in (13, 14):
        assert rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS) == []
    (suspect,) = rule.suspects(15, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS)
    assert suspect.evidence.cosine is not None
    assert suspect.evidence.cosine < 0
    verdict = rule.by_direction(suspect)
    assert verdict is not None
    assert (verdict.site, verdict.origin, verdict.target) == ("a", 0, 1)
    moved = GROUPS | {"a": 1}
    rule.settle(verdict, 1, 15)
    # It rests for two rounds, whatever it does, and then needs patience anew.
    for round_number in (16, 17, 18, 19):
        assert rule.suspects(round_number, _drifting(moved, rng, "a", 0, 20.0), moved) == []
    assert [one.site for one in rule.suspects(20, _drifting(moved, rng, "a", 0, 20.0), moved)] == ["a"]


def test_a_site_that_fits_nowhere_founds_a_group_late_and_a_lone_one_stays() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, GROUPS, rng)
    away = 20 * (np.eye(8)[5] - np.eye(8)[0])
    verdicts = []
    for round_number in range(7, 13):
        (suspect,) = rule.suspects(round_number, _calm(GROUPS, rng) | {"a": away}, GROUPS) or (None,)
        verdicts.append(None if suspect is None else rule.by_direction(suspect))
    assert verdicts[:-1] == [None] * 5
    assert verdicts[-1] is not None
    assert verdicts[-1].target is None

    alone = {"a": 0, "d": 1, "e": 1}
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, alone, rng)
    for round_number in range(7, 13):
        suspects = rule.suspects(round_number, _calm(alone, rng) | {"a": away}, alone)
    verdict = rule.by_direction(suspects[0])
    assert verdict is not None
    assert verdict.target == verdict.origin == 0


def test_one_site_two_sites_and_zero_updates() -> None:
    rule = GuardedRule(MigrationSettings())
    for round_number in range(1, 5):
        assert rule.suspects(round_number, {"a": np.ones(3)}, {"a": 0}) == []
    assert rule.suspects(5, {"a": np.zeros(3)}, {"a": 0}) == []
    assert rule.suspects(6, {"a": np.ones(3), "b": -np.ones(3)}, {"a": 0, "b": 0}) == []
    assert rule.suspects(7, {}, {"a": 0, "b": 0}) == []
    assert PublishedRule(MigrationSettings()).moves({"a": np.zeros(3)}, {"a": 0}) == []


def test_a_strike_does_not_outlive_the_site_that_got_it() -> None:
    rng = np.random.default_rng(0)
    groups = {"a": 0, "b": 0, "c": 1, "d": 1}
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, groups, rng)
    assert rule.suspects(7, _drifting(groups, rng, "a", 1, 20.0), groups) == []
    assert rule.is_suspected("a")
    # From now on nobody hears of a; b is alone in what is heard of group 0.
    rest = {site: group for site, group in groups.items() if site != "a"}
    for round_number in range(8, 15):
        assert rule.suspects(round_number, _calm(rest, rng), groups) == []
    assert not rule.is_suspected("a")
    found = []
    for round_number in range(15, 18):
        found += rule.suspects(round_number, _drifting(rest, rng, "b", 1, 20.0), groups)
    assert found[0].site == "b"


@pytest.mark.parametrize("alone", [False, True], ids=["beside another group", "the only group"])
def test_a_group_that_changes_as_a_whole_stays_together(alone: bool) -> None:
    rng = np.random.default_rng(0)
    groups = {"a": 0, "b": 0, "c": 0} if alone else GROUPS
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, groups, rng)
    for round_number in range(7, 20):
        changes = _calm(groups, rng)
        changes |= {site: 20 * (np.eye(8)[6] + rng.normal(0, 0.05, 8)) for site in "abc"}
        assert rule.suspects(round_number, changes, groups) == []


def test_a_drifter_at_rest_brings_nobody_else_under_suspicion() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, GROUPS, rng)
    for round_number in (7, 8):
        found = rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS)
    # Its signature says that it stays; but it goes on pulling, and the others pull back.
    rule.settle(Verdict("a", 0, 0, found[0].evidence), 0, 8)
    for round_number in (9, 10, 11):
        changes = _drifting(GROUPS, rng, "a", 1, 20.0)
        changes |= {site: 8 * changes[site] for site in ("b", "c")}
        assert rule.suspects(round_number, changes, GROUPS) == []


def test_founders_of_one_round_that_head_the_same_way_share_a_group() -> None:
    rng = np.random.default_rng(0)
    groups = dict.fromkeys("abcdefg", 0) | {"x": 1, "y": 1}
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, groups, rng)
    away = {"a": np.eye(8)[4] - np.eye(8)[0], "b": np.eye(8)[4] - np.eye(8)[0], "c": np.eye(8)[6] - 2 * np.eye(8)[0]}
    founded: dict[str, int | None] = {}
    numbers = iter(range(2, 10))
    for round_number in range(7, 13):
        changes = _calm(groups, rng) | {site: 20 * change for site, change in away.items()}
        for verdict in examined(rule, round_number, changes, groups):
            group = next(numbers) if verdict.target is None else verdict.target
            rule.settle(verdict, group, round_number)
            founded[verdict.site] = group
    assert founded["a"] == founded["b"] == 2
    assert set(founded) == {"a", "b", "c"}


def test_a_founder_is_looked_at_again_ever_more_rarely_while_it_is_alone() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings(dwell=2), looks_again=True)
    _calm_then(rule, GROUPS, rng)
    rule.settle(Verdict("a", 0, None, Evidence(None, {}, 1.0)), 2, 6)
    groups = GROUPS | {"a": 2}
    examined_in = []
    for round_number in range(7, 40):
        for suspect in rule.suspects(round_number, _calm(groups, rng), groups):
            examined_in.append(round_number)
            rule.settle(Verdict(suspect.site, 2, 2, suspect.evidence), 2, round_number)
    assert examined_in == [9, 14, 23]
    # By its direction alone a calm founder is never moved, however its noise may point.
    suspect = Suspect("a", 2, 0, Evidence(None, {0: 0.9}, 1.0))
    assert rule.by_direction(suspect) == Verdict("a", 2, 2, suspect.evidence)
    company = groups | {"b": 2}
    assert all(rule.suspects(number, _calm(company, rng), company) == [] for number in range(50, 60))


# --- confirmation by signature ----------------------------------------------------------------------------------------

SUSPECT = Suspect("x", 0, 2, Evidence(-0.5, {1: 0.3}, 2.0, 0.1, 0.1))


def _places(positions: list[float]) -> np.ndarray:
    return np.abs(np.subtract.outer(positions, positions))


def _judged(
    at: float,
    positions: list[float],
    labels: list[int],
    witnesses: list[bool] | None = None,
    shares: list[list[float]] | None = None,
) -> Verdict:
    """Examine the first of the members, which is now somewhere else."""
    verdict = by_signature(
        SUSPECT,
        len(positions),
        _places([*positions, at]),
        np.arange(len(positions)),
        np.array(labels),
        0,
        np.array(witnesses or [True] * len(labels)),
        np.ones((len(positions) + 1, 1)) if shares is None else np.array(shares),
    )
    assert verdict.origin == 0
    assert set(verdict.evidence.distances) == set(labels[1:])
    return verdict


def _judge(*arguments: Any, **options: Any) -> int | None:
    return _judged(*arguments, **options).target


def test_a_fresh_signature_names_the_group_that_fits() -> None:
    positions, labels = [0.0, 2.0, 10.0, 12.0, 21.0], [0, 0, 1, 1, 2]
    assert _judge(1.0, positions, labels) == 0
    assert _judge(9.0, positions, labels) == 1
    assert _judge(20.0, positions, labels) == 2
    # As far from group 2 as group 1 is: it fits nowhere.
    assert _judge(31.0, positions, labels) is None
    # Half as far, and far beyond what is usual among members: it fits nowhere either.
    assert _judge(17.0, [0.0, 0.2, 10.0, 10.2], [0, 0, 1, 1]) is None
    # Still between two groups: it stays, whichever is nearer.
    assert _judge(7.0, positions, labels) == 0


def test_who_has_many_samples_of_foreign_classes_is_between_two_groups() -> None:
    positions, labels = [0.0, 2.0, 10.0, 12.0], [0, 0, 1, 1]
    members = [[1.0, 0.0], [1.0, 0.0], [0.1, 0.9], [0.0, 1.0]]
    assert _judge(11.0, positions, labels, shares=[*members, [0.4, 0.6]]) == 0
    assert _judge(11.0, positions, labels, shares=[*members, [0.3, 0.7]]) == 1


def test_who_is_alone_is_not_held_back_by_what_it_used_to_be() -> None:
    # It founded a group while it was half-way to group 1, and has arrived.
    assert _judge(10.5, [8.0, 10.0, 12.0, 0.0, 2.0], [0, 1, 1, 2, 2]) == 1
    # It still is half-way.
    assert _judge(8.1, [8.0, 10.0, 10.2, 0.0, 0.2], [0, 1, 1, 2, 2]) == 0


def test_who_may_be_in_the_middle_of_a_change_is_in_doubt() -> None:
    positions, labels = [0.0, 0.0, 2.0, 10.0, 12.0], [0, 0, 0, 1, 1]
    assert not _judged(1.0, positions, labels).in_doubt
    assert not _judged(11.0, positions, labels).in_doubt
    # Between the two; and far from everybody.
    assert _judged(7.0, positions, labels).in_doubt
    assert _judged(50.0, positions, labels).in_doubt


def test_suspects_do_not_describe_their_group_unless_nobody_else_can() -> None:
    # Half of group 1 has drifted to 0: only its witness at 10 speaks for it.
    assert _judge(9.9, [0.0, 0.2, 0.1, 10.0], [0, 0, 1, 1], [True, True, False, True]) == 1
    # All of group 1 is under suspicion: what its members sent before speaks for it.
    assert _judge(10.1, [0.0, 0.2, 10.0, 10.2], [0, 0, 1, 1], [True, True, False, False]) == 1


def test_on_a_tie_a_site_stays_and_a_single_group_may_lose_a_stranger() -> None:
    assert _judge(5.0, [0.0, 10.0], [0, 1]) == 0
    assert _judge(5.0, [10.0, 0.0], [0, 1]) == 0
    assert _judge(0.5, [0.0, 1.0, 0.5], [0, 0, 0]) == 0
    assert _judge(50.0, [0.0, 1.0, 0.5], [0, 0, 0]) is None
    # Who is alone in a group cannot found another.
    assert _judge(50.0, [0.0], [0]) == 0
    assert _judge(50.0, [0.0, 10.0], [0, 1]) == 0


# --- a site that raises its hand, rests that grow, moves on trial -----------------------------------------------------


def test_a_raised_hand_is_heeded_at_once_and_again_after_a_short_rest() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings(dwell=2), looks_again=True)
    _calm_then(rule, GROUPS, rng)
    heeded = []
    for round_number in range(7, 30):
        # It says so for six rounds, and is cleared each time, but not without doubt.
        raised = {"a": 5.0} if round_number < 13 else {}
        for suspect in rule.suspects(round_number, _calm(GROUPS, rng), GROUPS, raised=raised):
            assert suspect.evidence.changed == raised.get("a")
            heeded.append(round_number)
            rule.settle(Verdict("a", 0, 0, suspect.evidence, in_doubt=round_number < 15), 0, round_number)
    # By its own word after two rounds each; then it is looked at again after a rest, until there is no doubt.
    assert heeded == [7, 10, 15]
    assert not any(rule.is_suspected(site) for site in GROUPS)


def test_rests_double_and_are_forgiven_after_a_long_calm() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings(dwell=2))
    _calm_then(rule, GROUPS, rng)
    alarms = []
    for round_number in range(7, 30):
        for suspect in rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS):
            alarms.append(round_number)
            rule.settle(Verdict("a", 0, 0, suspect.evidence), 0, round_number)
    # Two rounds of patience after rests of 2, 4 and 8 rounds.
    assert alarms == [8, 12, 18, 28]
    calm = rule._records["a"].rests_until + 70
    for round_number in range(30, calm):
        rule.suspects(round_number, _calm(GROUPS, rng), GROUPS)
    for round_number in range(calm, calm + 2):
        for suspect in rule.suspects(round_number, _drifting(GROUPS, rng, "a", 1, 20.0), GROUPS):
            rule.settle(Verdict("a", 0, 0, suspect.evidence), 0, round_number)
    assert rule._records["a"].rest == 2


@pytest.mark.parametrize(
    ("there", "back"), [((0.9, 0.8), True), ((0.9, 0.6), True), ((0.1,), False), ((0.9, 0.4), False)]
)
def test_a_move_by_direction_is_on_trial_for_as_long_as_its_suspicion_lasted(
    there: tuple[float, ...], back: bool
) -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings())
    _calm_then(rule, GROUPS, rng)
    found: list[Suspect] = []
    for round_number in (7, 8):
        changes = _drifting(GROUPS, rng, "a", 1, 20.0)
        found = rule.suspects(round_number, changes, GROUPS, losses=dict.fromkeys(GROUPS, 1.0))
    verdict = rule.by_direction(found[0])
    assert verdict is not None
    assert verdict.target == 1
    rule.settle(verdict, 1, 8)
    moved = GROUPS | {"a": 1}
    later = rule
    for round_number, loss in enumerate(there, start=9):
        # The state of a run that goes on is part of the trial.
        state, later = later.state(), GuardedRule(MigrationSettings())
        later.restore(json.loads(json.dumps(state, default=np.ndarray.tolist)))
        found = later.suspects(round_number, _calm(moved, rng), moved, losses=dict.fromkeys(GROUPS, 1.0) | {"a": loss})
        assert [suspect.back for suspect in found] == ([0] if back and round_number == 10 else [])
    if back:
        verdict = later.by_direction(found[0])
        assert verdict is not None
        assert (verdict.origin, verdict.target) == (1, 0)
        assert "did not help" in verdict.evidence.reason
        later.settle(verdict, 0, 10)
        assert later._records["a"].rest == 2 * MigrationSettings().dwell
    # It is tried once.
    home = GROUPS if back else moved
    assert later.suspects(11, _calm(home, rng), home, losses=dict.fromkeys(GROUPS, 9.0)) == []


def test_who_cannot_go_back_stays() -> None:
    rng = np.random.default_rng(0)
    rule = GuardedRule(MigrationSettings())
    groups = {"a": 0, "b": 1, "c": 1, "d": 2, "e": 2}
    _calm_then(rule, groups, rng)
    for round_number in (7, 8):
        changes = _drifting(groups, rng, "a", 1, 20.0)
        rule.suspects(round_number, changes, groups, losses=dict.fromkeys(groups, 1.0))
    rule.settle(Verdict("a", 0, 1, Evidence()), 1, 8)
    moved = groups | {"a": 1}
    assert rule.suspects(9, _calm(moved, rng), moved, losses=dict.fromkeys(groups, 5.0)) == []
