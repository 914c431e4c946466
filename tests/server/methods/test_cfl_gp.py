"""CFL-GP: running means, which model a gradient is of, matched labels, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch.nn import functional

from client.training import gradient, normalise
from common import wire
from common.clock import TOLERANCE
from common.config import SettingsError
from common.methods.cfl_gp import CRITERION, GRADIENT
from common.methods.ifca import LOSSES
from common.models import build, get_state
from common.state import Extras, State
from server.app import conduct
from server.history.events import GroupsFormed, RoundFinished, RoundTrained, SiteLeftOut, SitePlaced, SitesMoved
from server.methods.cfl_gp import GradientPartition
from tests.support.loopback import LoopbackGrid
from tests.support.resuming import check_resumed
from tests.support.rules import Sites, carry_out, config_of
from tests.support.runs import MakeConfig, Record, failed, run

NAME = "head.weight"
K = {"1": (1, 0), "2": (0.9, 0.1), "3": (-1, 0.1), "4": (-0.9, 0)}


def model(value: float) -> State:
    return {NAME: np.full(2, value, np.float32)}


def federation(gradients: dict[str, tuple[float, float]]) -> Sites:
    """Sites with these gradients at every model; who has none is silent."""
    criteria: list[float] = []

    def answer(question: str, extras: Extras, site: str) -> Extras | None:
        assert question == GRADIENT
        criteria.append(float(extras[CRITERION][NAME][0]))
        return {GRADIENT: {NAME: np.array(gradients[site], np.float32)}} if site in gradients else None

    sites = Sites(dict.fromkeys("1234", 10), model(0.0), answer, {0: model(0.0), 1: model(1.0)})
    sites.criteria = criteria  # type: ignore[attr-defined]
    return sites


def rule(sites: Sites, k: int = 2, **settings: object) -> GradientPartition:
    return GradientPartition(config_of("cfl-gp", cluster__k=k, **settings), sites)


def test_vector_k() -> None:
    one = rule(federation(K))
    opening = one.open()
    assert opening.groups == {"1": 0, "2": 0, "3": 1, "4": 1}
    assert set(opening.models) == {0, 1}
    np.testing.assert_array_equal(opening.models[0][NAME], opening.models[1][NAME])


def test_a_block_is_the_running_mean_of_what_was_heard() -> None:
    one = rule(federation({}), k=2)
    one._learn("1", 0, np.array([1, 0], np.float32))
    one._learn("1", 0, np.array([0, 1], np.float32))
    one._learn("1", 1, np.array([4, 2], np.float32))
    np.testing.assert_allclose(one.state()["features"]["1"], [0.5, 0.5, 4, 2])


def test_models_take_turns_and_after_the_last_time_nobody_is_asked() -> None:
    """The published code never leaves model 0: K − 1 blocks stay empty."""
    sites = federation(K)
    one = rule(sites, cfl_gp__times=3, cfl_gp__every=2)
    home = dict(one.open().groups)
    for round_number in range(1, 9):
        assert carry_out(one, round_number, home) == home
    assert [len(asked) for asked in sites.asked] == [4, 4, 4]
    assert not any(sites.few)
    assert sites.criteria[::4] == [0.0, 1.0, 0.0]  # type: ignore[attr-defined]
    assert one.state()["features"] == one._features == one._visits == {}


def test_a_site_that_changes_its_mind_moves_and_a_restart_changes_nothing() -> None:
    gradients = dict(K)
    one = rule(federation(gradients))
    home = dict(one.open().groups)
    gradients["2"] = (-1.0, 0.0)
    again = rule(federation(gradients))
    again.restore(one.state())
    assert carry_out(one, 2, home) == carry_out(again, 2, home)
    assert carry_out(again, 4, home)["2"] == 1


def test_a_silent_site_keeps_its_group() -> None:
    gradients = {site: K[site] for site in "124"}
    one = rule(federation(gradients))
    opening = one.open()
    assert "3" not in opening.groups
    home = {"3": 0} | opening.groups
    del gradients["1"]
    gradients["4"] = (-2.0, 0.0)
    assert carry_out(one, 2, home) == home


def test_identical_sites_share_a_group_and_one_group_is_everybody() -> None:
    opening = rule(federation(dict.fromkeys("1234", (1.0, 2.0)))).open()
    assert set(opening.groups.values()) == {0}
    assert set(rule(federation(K), k=1).open().groups.values()) == {0}


def test_too_many_gradients_are_refused_before_anybody_is_asked() -> None:
    sites = federation(K)
    sites.declared = {f"{number:05d}": 1 for number in range(2**14)}
    sites.start = {NAME: np.zeros(2**16, np.float32)}
    with pytest.raises(SettingsError, match=r"'cfl-gp' would hold 12\.0 GiB of answers at once"):
        rule(sites).open()
    assert not sites.asked


def test_a_gradient_is_that_of_all_samples_at_the_model_and_leaves_it_as_it_is() -> None:
    rng = np.random.default_rng(0)
    network = build("resnet9", classes=3, channels=1, image_size=8, seed=1)
    before = {name: array.copy() for name, array in get_state(network).items()}
    images, labels = rng.integers(0, 255, (150, 8, 8, 1), np.uint8), rng.integers(0, 3, 150)
    ours = gradient(network, images, labels, device=torch.device("cpu"))
    network.eval()
    loss = functional.cross_entropy(network(normalise(torch.from_numpy(images))), torch.from_numpy(labels))
    slow = torch.autograd.grad(loss, list(network.parameters()))
    for (name, array), expected in zip(ours.items(), slow, strict=True):
        np.testing.assert_allclose(array, expected.numpy(), atol=1e-5, err_msg=name)
    for name, array in get_state(network).items():
        np.testing.assert_array_equal(array, before[name])


SMALL = {"method": "cfl-gp", "cluster__k": 2, "sites": 4, "cfl_gp__times": 2}


def test_a_site_is_asked_about_the_criterion_whatever_its_group(small_config: MakeConfig) -> None:
    """The published code answers with the gradient at the site's own model."""
    record, grid = run(small_config(**SMALL, rounds=3, train__fraction=0.5))
    assert not record.of(SiteLeftOut)
    asked = [m for m in grid.pushed if m.metadata.message_type == "query.method"]
    assert [wire.unpack_task(message.content).round_number for message in asked] == [0] * 4 + [2] * 4
    sent = [wire.unpack_arrays(message.content[f"extra {CRITERION}"])["head.weight"] for message in asked[4:]]
    expected = record.of(RoundTrained)[1].models[1]["head.weight"]
    assert all(np.array_equal(model, expected) for model in sent)
    answers = [r.content for r in grid.replies if f"extra {GRADIENT}" in r.content][4:]
    heads = [wire.unpack_arrays(content[f"extra {GRADIENT}"])["head.weight"] for content in answers]
    assert not np.array_equal(heads[0], heads[1])


def test_with_one_group_it_is_fedavg_bit_for_bit(small_config: MakeConfig) -> None:
    def losses(**settings: object) -> list[float]:
        return [event.overall.loss for event in run(small_config(sites=4, **settings))[0].of(RoundFinished)]

    assert losses(method="cfl-gp", cluster__k=1) == losses(method="fedavg")


def test_a_group_moves_by_updates_made_from_its_own_model(small_config: MakeConfig) -> None:
    """In the published round 0 gradients of model 0 are applied to K different models. A group whose members' replies
    are all lost keeps its model, whatever the others do."""
    formed: list[int] = []

    def lose(index: int, request: Message, reply: Message) -> Message:
        lost = request.metadata.message_type == "train" and formed[index] == 1
        return failed(request, reply) if lost else reply

    class Groups(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, GroupsFormed):
                formed.extend(event.labels)

    record = Groups()
    config = small_config(**SMALL | {"cfl_gp__times": 1})
    conduct(LoopbackGrid(4, fault=lose), config, [record])
    assert set(formed) == {0, 1}
    first, last = record.of(RoundTrained)[0].models, record.of(RoundTrained)[-1].models
    np.testing.assert_array_equal(first[1]["head.weight"], last[1]["head.weight"])
    assert not np.array_equal(first[0]["head.weight"], last[0]["head.weight"])
    assert not record.of(SitesMoved)


def test_a_newcomer_takes_the_model_with_the_least_loss(small_config: MakeConfig) -> None:
    config = small_config(**SMALL, round__start_timeout=0.3)
    grid = LoopbackGrid(4)
    grid.disconnect(103)

    class Late(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(103, 3)

    record = Late()
    conduct(grid, config, [record])
    (placed,) = record.of(SitePlaced)
    answers = [r.content for r in grid.replies if "extra losses" in r.content]
    values = wire.unpack_arrays(answers[0]["extra losses"])["values"]
    assert len(values) == 2
    assert (placed.site, placed.group) == ("003", int(values.argmin()))
    asked = [m for m in grid.pushed if m.metadata.message_type == "query.method"]
    times = [m.metadata.ttl for m in asked if wire.unpack_task(m.content).question == LOSSES]
    assert times == [0.3 + TOLERANCE], "everybody waits for it"


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = SMALL | {"cfl_gp__times": 3, "cfl_gp__every": 1, "train__fraction": 0.5}
    check_resumed(small_config, tmp_path, stop=3, rounds=4, **settings)
