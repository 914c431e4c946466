"""The rehearsal: which heads there are, what sites do with them, what is chosen, and whole runs of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

from client.methods.rehearsal import Folded
from common import wire
from common.config import SettingsError
from common.extras import Network
from common.methods.rehearsal import AGREEMENT, LOSSES, TEST, TRAIN
from common.models import EMBEDDING_LENGTH
from common.prior import class_shares
from server.aggregation import GroupAverage
from server.clustering import fewest_as_good, merge_tree
from server.history.events import (
    GroupsFormed,
    RehearsalDone,
    RehearsalStarted,
    ReplyAccepted,
    RoundFinished,
    SiteLeftOut,
)
from server.methods import settle
from server.rehearsal import Plan
from tests.support.runs import MakeConfig, failed, on, run

# --- which heads there are -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), sites=st.integers(2, 14), k_max=st.integers(1, 12))
def test_every_group_of_every_cut_has_one_head(seed: int, sites: int, k_max: int) -> None:
    points = np.random.default_rng(seed).normal(size=(sites, 3))
    tree = merge_tree(np.sqrt(((points[:, None] - points) ** 2).sum(axis=-1)))
    plan = Plan.of(tree, k_max)
    assert plan.ks == tuple(range(1, min(k_max, sites - 1) + 1))
    assert len(set(plan.members)) == len(plan.members) <= max(2 * len(plan.ks) - 1, 1)
    for column, k in enumerate(plan.ks):
        labels = tree.cut(k)
        for site in range(sites):
            company = tuple(np.flatnonzero(labels == labels[site]).tolist())
            head = plan.heads[site, column]
            assert (head == -1) if len(company) == 1 else (plan.members[head] == company)
    for site in range(sites):
        assert plan.of_site(site) == sorted({int(head) for head in plan.heads[site]} - {-1})
        assert len(plan.of_site(site)) <= plan.most <= len(plan.ks)


# --- what is chosen --------------------------------------------------------------------------------------------


def test_fewer_groups_unless_more_are_clearly_better() -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(5, 50, 20)
    base = rng.gamma(2.0, 0.3, 20) * samples
    equal = np.stack([base, base, base], axis=1)
    assert fewest_as_good((1, 2, 20), equal, samples, rng).k == 1
    # At every site a little better: small beside what sites differ by, and clear all the same.
    better = np.stack([base, base - 0.02 * samples, base], axis=1)
    found = fewest_as_good((1, 2, 20), better, samples, np.random.default_rng(1))
    assert found.k == 2
    assert found.losses == pytest.approx((better.sum(axis=0) / samples.sum()).tolist())
    assert found.low[1] == pytest.approx(-0.02)
    assert found.low[0] == found.high[0] == 0
    # Better at some, worse at others, a little better in the sum: not clearly.
    mixed = rng.normal(0, 0.2, 20)
    mixed -= (mixed @ samples) / samples.sum() + 0.001
    unclear = np.stack([base, base + mixed * samples, base + samples], axis=1)
    found = fewest_as_good((1, 2, 20), unclear, samples, np.random.default_rng(1))
    assert min(found.losses) == found.losses[1]
    assert found.k == 1
    assert found.low[1] < 0 < found.high[1]


def test_the_same_seed_chooses_the_same() -> None:
    losses, samples = np.random.default_rng(0).gamma(2.0, size=(9, 4)) * 10, np.full(9, 10)
    first, second = (fewest_as_good((1, 2, 3, 9), losses, samples, np.random.default_rng(5)) for _ in range(2))
    assert first == second


# --- at a site -------------------------------------------------------------------------------------------------


def folded(
    seed: int, embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, name: str = "a"
) -> Folded:
    visit = SimpleNamespace(settings=SimpleNamespace(seed=seed), site=SimpleNamespace(name=name, secret=None))
    return Folded(embeddings, labels, classes, visit)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 4, 16, 23])
def test_training_equals_torch_head_by_head(count: int) -> None:
    rng = np.random.default_rng(count)
    embeddings, labels = rng.normal(size=(count, 7)).astype(np.float32), rng.integers(0, 3, count)
    site = folded(3, embeddings, labels, 3)
    heads = (rng.normal(size=(2, 4, 3, 8)) * 0.01).astype(np.float32)
    trained = site.train(heads, 2)
    part = site._part
    rows = functional.normalize(torch.from_numpy(embeddings)) * EMBEDDING_LENGTH
    losses = np.zeros(2)
    for fold in range(4):
        kept = np.flatnonzero(part != fold)
        prior = torch.from_numpy(np.log(class_shares(np.bincount(labels[kept], minlength=3)))).float()
        from common.randomness import generator

        order = generator(3, f"rehearsal fold {fold}", "a", 2).permutation(kept)
        for head in range(2):
            weights = torch.tensor(heads[head, fold], requires_grad=True)
            for start in range(0, len(order), 16):
                batch = order[start : start + 16]
                scores = rows[batch] @ weights[:, :-1].T + weights[:, -1] + prior
                (slope,) = torch.autograd.grad(
                    functional.cross_entropy(scores, torch.from_numpy(labels[batch])), weights
                )
                weights = (weights - 0.01 * slope).detach().requires_grad_()
            np.testing.assert_allclose(trained[head, fold], weights.detach().numpy(), rtol=1e-4, atol=1e-5)
            out = np.flatnonzero(part == fold)
            with torch.no_grad():
                scores = rows[out] @ weights[:, :-1].T + weights[:, -1] + prior
                losses[head] += float(functional.cross_entropy(scores, torch.from_numpy(labels[out]), reduction="sum"))
    np.testing.assert_allclose(site.losses(trained), losses, rtol=1e-4, atol=1e-5)
    assert site.held_out(5) == count
    assert site.held_out(1) >= 1


def test_a_head_of_another_form_is_refused() -> None:
    site = folded(0, np.ones((4, 7), np.float32), np.zeros(4, np.int64), 3)
    assert site.checked(np.zeros((5, 3, 8), np.float32)).shape == (5, 3, 8)
    for shape in ((6, 3, 8), (0, 3, 8), (5, 2, 8), (5, 3, 7)):
        with pytest.raises(wire.WireError, match="a head is"):
            site.checked(np.zeros(shape, np.float32))


@pytest.mark.parametrize(("concepts", "expected"), [(1, 1), (2, 2)])
def test_groups_are_chosen_where_they_bring_something(concepts: int, expected: int) -> None:
    """Six sites of two names for the same classes, and six of one: one group, two, or each alone."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 12))
    sites = []
    for site in range(6):
        labels = rng.integers(0, 3, 60)
        rows = (centres[labels] + 0.7 * rng.normal(size=(60, 12))).astype(np.float32)
        sites.append(folded(0, rows, (labels + site % concepts) % 3, 3, f"site {site}"))
    losses = np.empty((6, 3))
    for column, groups in enumerate(([0] * 6, [0, 1] * 3, range(6))):
        for group in set(groups):
            own = [site for site, label in zip(sites, groups, strict=True) if label == group]
            head = {"weights": own[0].start(5)}
            for number in range(1, 9):
                average = GroupAverage(head, 60 * len(own))
                for member in own:
                    average.add({"weights": member.train(head["weights"], number)}, 60)
                head = average.result()
            for place, (member, label) in enumerate(zip(sites, groups, strict=True)):
                if label == group:
                    losses[place, column] = member.losses(head["weights"])[0]
    assert fewest_as_good((1, 2, 6), losses, np.full(6, 60), rng).k == expected


# --- whole runs ------------------------------------------------------------------------------------------------


def rehearsed(small_config: MakeConfig, **changes: object):  # type: ignore[no-untyped-def]
    values: dict[str, object] = {"cluster__choice": "rehearsal", "rehearsal__rounds": 3, "rounds": 1}
    return small_config(**(values | changes))


def test_a_rehearsal_decides_how_many_groups(small_config: MakeConfig) -> None:
    record, _ = run(rehearsed(small_config))
    (planned,), (done,), (formed,) = (record.of(kind) for kind in (RehearsalStarted, RehearsalDone, GroupsFormed))
    assert done.outcome.ks == planned.ks == (1, 2, 3, 4, 5, 6)
    assert planned.folds == 5
    assert len(set(formed.labels)) == done.outcome.k
    assert np.isfinite(done.outcome.losses).all()
    # Everybody trains in three exchanges and is tested in one more; what was told beforehand is not exceeded.
    replies = [event for event in record.of(ReplyAccepted) if event.stage == "rehearse"]
    assert len(replies) == 4 * 6
    for site in formed.sites:
        received = sum(event.bytes_received for event in replies if event.site == site)
        # The headers of the arrays, and the losses.
        assert received <= planned.bytes_each_way + 4 * 6 * 400
    assert not record.of(SiteLeftOut)
    assert record.of(RoundFinished)
    again, _ = run(rehearsed(small_config))
    assert again.of(RehearsalDone) == [done]


def test_fewer_folds_where_five_would_be_too_much(small_config: MakeConfig) -> None:
    record, _ = run(rehearsed(small_config, rounds=0, rehearsal__rounds=1, rehearsal__megabytes=0.01))
    (planned,) = record.of(RehearsalStarted)
    assert planned.folds == 1
    assert record.of(RehearsalDone)


def answering(question: str, change: Callable[[wire.Answered], None]) -> Callable[[Message, Message], Message]:
    """Alter what is answered to one of the two questions."""

    def apply(request: Message, reply: Message) -> Message:
        if request.content["task"]["question"] != question:
            return reply
        declared = AGREEMENT.questions[question].up
        answer = wire.unpack_answered(reply.content, declared=declared, network=Network({}, 0), limit_mb=100)
        change(answer)
        reply.content = wire.pack_answered(answer)
        return reply

    return apply


def set_loss(value: float) -> Callable[[wire.Answered], None]:
    return lambda answer: answer.extras[LOSSES].update(alone=np.array(value))


def drop_head(answer: wire.Answered) -> None:
    answer.extras.pop(sorted(answer.extras)[0])  # type: ignore[attr-defined]


def break_head(answer: wire.Answered) -> None:
    name = sorted(answer.extras)[0]
    answer.extras[name]["weights"] = answer.extras[name]["weights"][:1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("question", "change", "reason"),
    [
        (TEST, set_loss(1e9), "mean log loss"),
        (TEST, set_loss(np.inf), "not finite"),
        (TEST, lambda a: a.extras[LOSSES].update(samples=np.array(10_000)), "10000 samples"),
        (TEST, lambda a: a.extras[LOSSES].update(heads=np.zeros(1)), "1 losses"),
        (TRAIN, drop_head, "other heads"),
        (TRAIN, break_head, "weights is float32"),
    ],
)
def test_who_answers_nonsense_is_named_and_the_others_decide(
    small_config: MakeConfig, question: str, change: Callable[[wire.Answered], None], reason: str
) -> None:
    config = rehearsed(small_config, rounds=0, rehearsal__rounds=1)
    record, _ = run(config, fault=on("query.method", 2, answering(question, change)))
    (left,) = [event for event in record.of(SiteLeftOut) if event.stage == "rehearse"]
    assert reason in left.reason
    assert record.of(RehearsalDone)
    assert len(record.of(GroupsFormed)[0].sites) == 6


def blow_up_last(answer: wire.Answered) -> None:
    weights = answer.extras[sorted(answer.extras)[-1]]
    weights["weights"] = np.full_like(weights["weights"], 1e30)  # type: ignore[index]


def test_who_is_left_out_counts_in_no_head(small_config: MakeConfig) -> None:
    config = rehearsed(small_config, rounds=0, rehearsal__rounds=1)
    partly, _ = run(config, fault=on("query.method", 2, answering(TRAIN, blow_up_last)))
    silent, _ = run(config, fault=on("query.method", 2, failed))
    assert partly.of(RehearsalDone) == silent.of(RehearsalDone)


def test_a_site_that_hangs_is_waited_for_once_and_named_once(small_config: MakeConfig) -> None:
    config = rehearsed(small_config, rounds=0, round__deadline=1.0)
    record, grid = run(config, fault=on("query.method", 2, lambda request, reply: None))
    asked = Counter(m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "query.method")
    assert asked == dict.fromkeys((100, 101, 103, 104, 105), 4) | {102: 1}
    (left,) = record.of(SiteLeftOut)
    assert (left.stage, left.site) == ("rehearse", "002")
    assert record.of(RehearsalDone)


def test_where_nobody_can_be_tested_the_silhouette_decides(small_config: MakeConfig) -> None:
    config = rehearsed(small_config, rounds=0, rehearsal__rounds=1)
    alter = answering(TEST, set_loss(1e9))

    def fault(index: int, request: Message, reply: Message) -> Message:
        return alter(request, reply) if request.metadata.message_type == "query.method" else reply

    record, _ = run(config, fault=fault)
    assert not record.of(RehearsalDone)
    plain, _ = run(small_config(rounds=0))
    assert record.of(GroupsFormed)[0].labels == plain.of(GroupsFormed)[0].labels


def test_rehearsal_goes_with_signatures_and_a_free_number_of_groups(small_config: MakeConfig) -> None:
    for changes in ({"method": "pacfl"}, {"method": "fedavg"}):
        with pytest.raises(SettingsError, match="group by signatures"):
            settle(rehearsed(small_config, **changes))
    for changes in ({"cluster__k": 2}, {"cluster__threshold": 0.5}):
        with pytest.raises(SettingsError, match="chooses the number of groups"):
            settle(rehearsed(small_config, **changes))
