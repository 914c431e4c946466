"""FedCCFA: the spec's vector, the named defects of the published code, what a site is tested with, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from client.methods.fedccfa import Alignment, balanced, entropy
from client.prediction import open_model
from common import wire
from common.methods.fedccfa import ANCHORS, BALANCED, HEAD, OWN_HEAD, PROTOTYPES, Settings
from common.models import Network
from common.state import Extras
from server.clustering.classwise import components, row_distance
from server.history.events import MemoryLost, RoundFinished, RoundTrained, SiteLeftOut
from server.methods.fedccfa import ClasswiseHeads, share
from server.methods.training import Contribution
from tests.support.resuming import check_resumed
from tests.support.rules import Sites, config_of
from tests.support.runs import MakeConfig, on, run

L = [np.array(row, float) for row in ((1, 0), (2, 0), (0, 1), (0, 3))]


def test_vector_l() -> None:
    distance = row_distance(L)
    expected = np.ones((4, 4)) - np.kron(np.eye(2), np.ones((2, 2)))
    np.testing.assert_allclose(distance, expected, atol=1e-12)
    assert components(distance, 0.1).tolist() == [0, 0, 1, 1]
    assert entropy(np.array([5, 0, 5, 0, 0])) / 20 == pytest.approx(0.0346574, abs=1e-7)


def slow_distance(rows: list[np.ndarray]) -> np.ndarray:
    cosine = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in rows] for a in rows]
    places = range(len(rows))
    return np.array(
        [
            [
                0.0
                if i == j
                else np.mean([abs(cosine[i][z] - cosine[j][z]) for z in places if z not in (i, j)])
                if len(rows) > 2
                else 1 - cosine[i][j]
                for j in places
            ]
            for i in places
        ]
    )


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_the_distance_is_the_obvious_one_and_blind_to_lengths(seed: int, count: int) -> None:
    """With two participants the published code divides by N − 2 = 0."""
    rng = np.random.default_rng(seed)
    rows = list(rng.normal(size=(count, 3)))
    np.testing.assert_allclose(row_distance(rows), slow_distance(rows), atol=1e-9)
    scaled = [row * scale for row, scale in zip(rows, rng.uniform(0.1, 9, count), strict=True)]
    np.testing.assert_allclose(row_distance(scaled), row_distance(rows), atol=1e-9)


def sent(rows: list[np.ndarray], counts: list[list[int]]) -> dict[str, Extras]:
    """What sites send whose heads and balanced heads are these rows in every class, and whose bias is 0."""
    classes = len(counts[0])
    return {
        str(place): {
            HEAD: (head := {"head.weight": np.tile(row, (classes, 1)), "head.bias": np.zeros(classes)}),
            BALANCED: head,
            PROTOTYPES: {"means": np.tile(row * 10, (classes, 1)), "counts": np.array(count)},
        }
        for place, (row, count) in enumerate(zip(rows, counts, strict=True))
    }


def test_those_who_agree_share_row_and_anchor() -> None:
    after = share(sent(L, [[10], [30], [20], [20]]), Settings())
    assert [after[site].head["head.weight"][0].tolist() for site in "0123"] == [[1.5, 0]] * 2 + [[0, 2]] * 2
    assert [after[site].means[0].tolist() for site in "0123"] == [[15, 0]] * 2 + [[0, 20]] * 2
    weighted = share(sent(L, [[10], [30], [20], [20]]), Settings(weights="counts"))
    assert weighted["0"].head["head.weight"][0].tolist() == [1.75, 0]


def test_only_holders_of_a_class_take_part_in_it() -> None:
    """The published code divides by all clients, and needs every class at every client."""
    after = share(sent([L[0], L[1], L[1]], [[5, 5, 0], [5, 0, 0], [0, 5, 5]]), Settings())
    assert after["0"].head["head.weight"].tolist() == [[1.5, 0], [1.5, 0], [1, 0]]
    assert after["2"].head["head.weight"].tolist() == [[2, 0], [1.5, 0], [2, 0]]
    assert after["2"].means[2].tolist() == [20, 0], "alone with a class: its own prototype"
    assert [after[site].held.tolist() for site in "012"] == [[1, 1, 0], [1, 0, 0], [0, 1, 1]]


def test_what_was_sent_stays_as_it_is() -> None:
    """The published code sums in place into the first client's prototype."""
    given_, again = sent(L, [[10]] * 4), sent(L, [[10]] * 4)
    share(given_, Settings())
    for site, extras in given_.items():
        for record, arrays in extras.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, again[site][record][name])


@pytest.mark.parametrize("count", [1, 2])
def test_one_participant_and_two(count: int) -> None:
    after = share(sent(L[:count], [[10]] * count), Settings())
    assert after["0"].head["head.weight"][0].tolist() == [[1.0, 0], [1.5, 0]][count - 1]


def test_below_zero_heads_are_fully_personal() -> None:
    after = share(sent([L[0], L[0], L[0]], [[10]] * 3), Settings(eps=-1.0))
    apart = share(sent([L[0], L[1], L[3]], [[10]] * 3), Settings(eps=-1.0))
    assert [kept.head["head.weight"][0].tolist() for kept in apart.values()] == [[1, 0], [2, 0], [0, 3]]
    assert len(after) == 3


def rule() -> ClasswiseHeads:
    own = {"head.weight": np.full((1, 2), 7.0), "head.bias": np.zeros(1)}
    return ClasswiseHeads(config_of("fedccfa"), Sites({"0": 10, "1": 10}, own=own))


def take(one: ClasswiseHeads, round_number: int, extras: dict[str, Extras], order: str) -> None:
    body = {"body.weight": np.zeros(1)}
    for site in order:
        contribution = Contribution(round_number, site, 0, 10, body, body, extras[site])
        one.term(contribution)
        one.observe(contribution)
    one.close(0, body, body, 20)


def test_the_order_of_arrival_and_a_restart_leave_no_trace() -> None:
    extras = sent([np.array([0.1, 0.2]), np.array([0.3, 0.61])], [[10], [10]])
    one, other = rule(), rule()
    take(one, 1, extras, "01")
    take(other, 1, extras, "10")
    again = rule()
    again.restore(other.state())
    for site in "01":
        for record, arrays in one.for_site(site, trains=True).items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, again.for_site(site, trains=False)[record][name])


def test_who_never_took_part_has_the_first_head_and_no_anchor() -> None:
    fresh = rule().for_site("0", trains=True)
    assert fresh[OWN_HEAD]["head.weight"].tolist() == [[7, 7]]
    assert (fresh[ANCHORS]["held"].tolist(), int(fresh[ANCHORS]["known"])) == ([0], 0)


def test_a_round_that_did_not_count_leaves_no_trace() -> None:
    one = rule()
    extras = sent([L[0], L[1]], [[10], [10]])
    one.observe(Contribution(1, "0", 0, 10, {}, {}, extras["0"]))
    take(one, 2, extras, "1")
    assert int(one.for_site("0", trains=True)[ANCHORS]["known"]) == 0
    assert one.for_site("1", trains=True)[OWN_HEAD]["head.weight"].tolist() == [[2, 0]]


@given(st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any), st.integers(1, 7))
def test_a_balanced_choice_has_as_many_of_every_class_that_is_there(counts: list[int], most: int) -> None:
    """The published code loops over 0 … k − 1 as if these were the labels: it crashes on {3, 7}."""
    labels = np.repeat(np.arange(len(counts)) * 3, counts)
    chosen = labels[balanced(labels, most, np.random.default_rng(0))]
    each = min(most, *(count for count in counts if count))
    assert np.unique(chosen, return_counts=True)[1].tolist() == [each] * sum(count > 0 for count in counts)
    assert np.isfinite(entropy(np.array(counts)))


def test_the_alignment_is_the_obvious_one_and_finite_where_a_class_has_no_anchor() -> None:
    torch.manual_seed(0)
    model = Network(nn.Identity(), 4, 10)
    found, labels, anchors = torch.randn(6, 4), torch.tensor([3, 7, 3, 0, 7, 3]), torch.randn(2, 4)
    ours = Alignment(anchors, torch.tensor([3, 7]), 0.1, 0.5)(model, found, labels)
    plain = functional.cross_entropy(model(found), labels)
    terms = []
    for z, y in zip(found, labels.tolist(), strict=True):
        if y in (3, 7):
            scores = [float(functional.cosine_similarity(z, anchor, dim=0)) / 0.1 for anchor in anchors]
            terms.append(-np.log(np.exp(scores[(3, 7).index(y)]) / np.exp(scores).sum()))
    assert float(ours.detach()) == pytest.approx(float(plain.detach()) + 0.5 * np.mean(terms), rel=1e-5)
    none = Alignment(anchors, torch.tensor([5, 6]), 0.1, 0.5)(model, found, labels)
    assert float(none.detach()) == float(plain.detach())


SMALL = {
    "method": "fedccfa",
    "sites": 4,
    "train__lr": 0.02,
    "partition__scheme": "classes",
    "partition__classes_per_site": 2,
    "fedccfa__align_from": 2,
}


def test_sites_with_two_of_ten_classes_train_and_everything_is_finite(small_config: MakeConfig) -> None:
    record, grid = run(small_config(**SMALL, rounds=3, train__fraction=0.5))
    assert not record.of(SiteLeftOut)
    assert not record.of(MemoryLost)
    assert all(np.isfinite(event.overall.loss) for event in record.of(RoundFinished))
    for message in [*grid.pushed, *grid.replies]:
        if "model" in message.content:
            assert not any(name.startswith("head.") for name in wire.unpack_model(message.content))


def test_everybody_is_tested_with_the_present_body_and_its_own_head(small_config: MakeConfig) -> None:
    """The published code tests who was not drawn with an old body."""
    record, grid = run(small_config(**SMALL, rounds=2, train__fraction=0.5))
    last = [message for message in grid.pushed if message.metadata.message_type == "evaluate"][-4:]
    body = record.of(RoundTrained)[-1].models[0]
    heads = set()
    for message in last:
        sent_body = wire.unpack_model(message.content)
        assert all(np.array_equal(sent_body[name], body[name]) for name in body)
        heads.add(wire.unpack_arrays(message.content[f"extra {OWN_HEAD}"])["head.weight"].tobytes())
    assert len(heads) > 1


def test_without_alignment_prototypes_change_nothing(small_config: MakeConfig) -> None:
    def losses(**settings: object) -> list[float]:
        return [event.overall.loss for event in run(small_config(**SMALL | settings))[0].of(RoundFinished)]

    never = losses(fedccfa__align_from=99)
    assert losses(fedccfa__gamma=1e30) == pytest.approx(never, rel=1e-6)
    assert losses(fedccfa__gamma=0.1) != pytest.approx(never, rel=1e-3)


def test_a_class_that_left_has_no_anchor_any_more(small_config: MakeConfig) -> None:
    """The published code never resets the counts of a class."""
    drift = [{"kind": "swap", "at": 2, "sites": 1.0}]
    settings = SMALL | {"partition__scheme": "disjoint", "partition__groups": 2, "rounds": 2}
    record, grid = run(small_config(**settings, drift=drift))
    assert not record.of(SiteLeftOut)
    held: dict[int, list[list[int]]] = {}
    for message in grid.pushed:
        if f"extra {ANCHORS}" in message.content:
            anchors = wire.unpack_arrays(message.content[f"extra {ANCHORS}"])
            held.setdefault(message.metadata.dst_node_id, []).append(anchors["held"].tolist())
    for of_site in held.values():
        first, before, after = of_site
        assert sum(first) == 0
        assert not any(a and b for a, b in zip(before, after, strict=True))


def test_counts_that_are_not_those_of_the_samples_are_refused_by_name(small_config: MakeConfig) -> None:
    def spoil(request: Message, reply: Message) -> Message:
        arrays = wire.unpack_arrays(reply.content[f"extra {PROTOTYPES}"])
        reply.content[f"extra {PROTOTYPES}"] = wire.pack_arrays(arrays | {"counts": arrays["counts"] + 1})
        return reply

    record, _ = run(small_config(**SMALL, rounds=1), fault=on("train", 0, spoil))
    assert "labels of" in record.reasons["train", "000"]


def test_a_site_keeps_the_whole_model(small_config: MakeConfig, tmp_path: Path) -> None:
    folders = {index: {"models": str(tmp_path / str(index))} for index in range(4)}
    run(small_config(**SMALL, rounds=1), node_configs=folders)
    kept = sorted(tmp_path.rglob("model.safetensors"))
    assert len(kept) == 4
    heads = [open_model(path)[0].state_dict()["head.weight"].numpy() for path in kept]
    assert not np.array_equal(heads[0], heads[1])


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=3, rounds=3, train__fraction=0.5, **SMALL)
