"""Whole runs with secure sums, over the real ClientApp: the same figures, whoever drops out, and nothing seen."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from common import wire
from common.config import Config, SettingsError
from common.drift import DriftEvent
from common.methods.scaffold import VARIATE
from common.models import get_state
from common.networks import build_for
from common.secure.terms import MASKED, digest_of
from common.tensor_names import is_parameter
from common.wire.records import EXTRA
from server.history.events import (
    GroupKept,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    SiteLeftOut,
    SitesMoved,
    StageStarted,
)
from server.methods import settle
from tests.support.loopback import Fault, LoopbackGrid
from tests.support.resuming import check_resumed
from tests.support.runs import MakeConfig, Record, failed, on, run, run_to_disk


def models_of(record: Record) -> list[dict[str, bytes]]:
    return [
        {f"{group} {name}": array.tobytes() for group, model in event.models.items() for name, array in model.items()}
        for event in record.of(RoundTrained)
    ]


def table_of(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """The lines of metrics.csv without the training loss, and that of each round."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [row.pop("train_loss") for row in rows]
    return rows, [loss for loss, row in zip(losses, rows, strict=True) if row["scope"] == "overall"]


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedadam"])
def test_the_figures_are_those_of_the_plain_mean_to_the_bit(
    small_config: MakeConfig, tmp_path: Path, method: str
) -> None:
    """Under FedPer a site's head is its own; under FedAdam the mean is not yet the model."""
    plain = run_to_disk(small_config(aggregate__cap=1.0, method=method), tmp_path / "plain")
    secure = run_to_disk(small_config(aggregate__rule="secure", aggregate__cap=1.0, method=method), tmp_path / "secure")
    figures, losses = table_of(secure)
    assert figures == table_of(plain)[0]
    # No site says how well its own training went.
    assert losses == ["nan", "nan"]


@pytest.mark.parametrize("kind", ["query.keys", "train", "query.open"])
def test_a_run_cut_off_at_any_stage_goes_on_to_the_same_bits(
    small_config: MakeConfig, tmp_path: Path, kind: str
) -> None:
    """The last round is done again by sites that were in the middle of it, with other masks; the sum is the same."""
    check_resumed(
        small_config, tmp_path, stop=3, kind=kind, method="fedavg", rounds=3, checkpoint=2, aggregate__rule="secure"
    )


def test_a_budget_at_each_site_goes_with_it(small_config: MakeConfig) -> None:
    """Noise is drawn before an update is hidden: the sum is that of the noisy updates, to the bit."""
    config = {"method": "fedavg", "rounds": 1, "privacy__epsilon": 8.0, "privacy__steps": 1, "train__model": "mlp"}
    plain, _ = run(small_config(**config))
    secure, grid = run(small_config(aggregate__rule="secure", **config))
    assert models_of(secure) == models_of(plain)
    exact, _ = run(small_config(method="fedavg", rounds=1, train__model="mlp"))
    assert models_of(secure) != models_of(exact)
    assert not secure.of(SiteLeftOut)
    updates = [reply.content for reply in grid.replies if "training" in reply.content]
    assert len(updates) == 6
    for content in updates:
        assert set(wire.unpack_model(content)) == {MASKED}
        # What the budget has come to is told beside it.
        assert 0 < content["training"]["spent"] <= 8.0  # type: ignore[operator,index]


def test_no_loss_is_told_beside_a_hidden_update(small_config: MakeConfig) -> None:
    """Under a model made for the purpose it would be a pixel of one image."""
    _, grid = run(small_config(method="fedavg", aggregate__rule="secure", rounds=1))
    told = [set(reply.content["training"]) for reply in grid.replies if "training" in reply.content]
    assert len(told) == 6
    assert not any("loss" in one for one in told)


def test_the_models_are_those_of_the_plain_mean_to_the_bit(small_config: MakeConfig) -> None:
    plain, _ = run(small_config(method="fedavg"))
    secure, grid = run(small_config(method="fedavg", aggregate__rule="secure"), order_seed=3)
    assert models_of(secure) == models_of(plain)
    assert not secure.of(SiteLeftOut)
    stages = [(event.stage, event.sites) for event in secure.of(StageStarted) if event.stage != "enrol"]
    assert stages == 2 * [("agree", 6), ("agree", 6), ("train", 6), ("open", 6), ("open", 6)] + [("evaluate", 6)]
    # What came back is noise as large as its type.
    for reply in grid.replies:
        if "training" in reply.content:
            vector = wire.unpack_model(reply.content)[MASKED]
            assert np.abs(vector.astype(np.float64)).mean() == pytest.approx(2.0**62, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "told"), [("query.keys", "agree"), ("query.shares", "agree"), ("train", "train"),
                        ("query.sign", "open"), ("query.open", "open")],
)  # fmt: skip
def test_a_site_that_is_gone_at_any_stage_costs_its_own_update_alone(
    small_config: MakeConfig, stage: str, told: str
) -> None:
    """Site 4 never gets beyond a stage of the first round; the others' mean is that of a run without its update."""
    once = []

    def change(request: Message, reply: Message) -> Message:
        once.append(reply)
        return failed(request, reply) if len(once) == 1 else reply

    secure, _ = run(small_config(method="fedavg", aggregate__rule="secure"), fault=on(stage, 4, change))
    assert [(event.stage, event.round_number, event.site) for event in secure.of(SiteLeftOut)] == [(told, 1, "004")]
    # Whose update was in already is in the sum, whatever becomes of the site afterwards.
    in_it = stage in ("query.sign", "query.open")
    lost: list[Message] = []

    def lose(request: Message, reply: Message) -> Message:
        lost.append(reply)
        return failed(request, reply) if len(lost) == 1 and not in_it else reply

    plain, _ = run(small_config(method="fedavg"), fault=on("train", 4, lose))
    assert models_of(secure) == models_of(plain)
    assert not secure.of(GroupKept)


def at(kind: str, sites: tuple[int, ...]) -> Fault:
    def fault(index: int, request: Message, reply: Message) -> Message | None:
        hit = index in sites and request.metadata.message_type == kind and request.content["task"]["round"] == 1
        return failed(request, reply) if hit else reply

    return fault


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("query.keys", "keys of 4 of 6 sites, and a secure sum takes 5"),
        ("query.shares", "shares of 4 of 6 sites, and a secure sum takes 5"),
        ("train", "updates of 4 of 6 sites, and a secure sum takes 5"),
        ("query.sign", "signatures of 4 of 6 sites, and a secure sum takes 5"),
        ("query.open", "4 of 6 members helped to open it, and it takes 5"),
    ],
)
def test_too_few_leave_the_model_as_it_is_and_the_next_round_goes_on(
    small_config: MakeConfig, kind: str, what: str
) -> None:
    record, _ = run(small_config(method="fedavg", aggregate__rule="secure"), fault=at(kind, (1, 4)))
    assert [(kept.round_number, kept.group, kept.reason) for kept in record.of(GroupKept)] == [(1, 0, what)]
    assert [event.round_number for event in record.of(RoundFinished)] == [1, 2]
    first, second = models_of(record)
    assert first != second


def test_a_group_that_is_too_small_is_told_so_and_is_asked_for_no_update(small_config: MakeConfig) -> None:
    config = small_config(
        method="fmcl",
        cluster__k=2,
        aggregate__rule="secure",
        partition__scheme="disjoint",
        partition__groups=2,
        sites=7,
    )
    record, grid = run(config)
    kept = [(event.round_number, event.reason) for event in record.of(GroupKept)]
    assert kept == [(n, "a secure sum takes 4 sites, and it has 3 that train now") for n in (1, 2)]
    trained = [event.site for event in record.of(ReplyAccepted) if event.stage == "train"]
    assert len(trained) == 2 * 4
    assert sum(message.metadata.message_type == "train" for message in grid.pushed) == 2 * 4
    # Its sites are tested all the same.
    assert [len(event.sites) for event in record.of(RoundFinished)] == [7, 7]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"method": "local"}, "every site is alone"),
        ({"method": "cfl"}, "by what their single updates are like"),
        ({"method": "fl-hc"}, "by what their single updates are like"),
        ({"method": "ifca", "cluster__k": 2}, "by what their single updates are like"),
        ({"method": "fednova"}, "makes more of an update"),
        ({"method": "scaffold"}, "makes more of an update"),
        ({"method": "fedcm"}, "how a layer of theirs moves"),
        ({"method": "fmcl", "migration__rule": "fedcm"}, "the direction of single updates"),
        ({"method": "pacfl", "cluster__choice": "rehearsal"}, "rehearsal"),
        ({"method": "fmcl", "cluster__choice": "rehearsal"}, "heads that it alone has trained"),
        ({"method": "fedavg", "sites": 3}, "sites = 3"),
    ],
)
def test_what_needs_single_updates_is_refused_with_a_sentence(
    small_config: MakeConfig, settings: dict[str, object], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        settle(small_config(aggregate__rule="secure", **settings))


def test_migration_by_signatures_works(small_config: MakeConfig) -> None:
    """Two sites swap their data: they say so themselves, are asked for a signature, and change groups."""
    config = small_config(
        method="fmcl", cluster__k=2, aggregate__rule="secure", migration__rule="guarded", rounds=4, sites=12,
        encoder__name="pixels",
        partition__scheme="disjoint", partition__groups=2,
        drift=(DriftEvent(kind="swap", at=2, sites=0.1),),
    )  # fmt: skip
    record, _ = run(config)
    moved = {site for event in record.of(SitesMoved) for site in event.sites}
    swapped = {site for event in record.of(SitesMoved) for site in event.sites if event.evidence.changed}
    assert len(moved) == 2
    assert moved == swapped
    assert not record.of(SiteLeftOut)


# --- what a coordinator may try ---------------------------------------------------------------------------------------


class Meddling(LoopbackGrid):
    """A coordinator that changes what some sites are sent, in the place of what the strategy would have sent."""

    def __init__(self, sites: int, kind: str, change: Callable[[int, RecordDict], None]) -> None:
        super().__init__(sites)
        self._kind, self._change = kind, change

    def _answer(self, message: Message) -> Message | None:
        if message.metadata.message_type == self._kind:
            self._change(self.connected[message.metadata.dst_node_id], message.content)
        return super()._answer(message)


def told(config: Config, kind: str, change: Callable[[int, RecordDict], None]) -> dict[str, str]:
    """What the sites say that were sent something else."""
    record, _ = run(config, Meddling(config.sites, kind, change))
    return {event.site: event.reason for event in record.of(SiteLeftOut)}


def test_no_rule_that_sends_more_than_an_update_is_followed(small_config: MakeConfig) -> None:
    """SCAFFOLD's variates go beside the masked update, and are the update over the steps: told to all sites alike."""
    config = small_config(method="fedavg", aggregate__rule="secure", rounds=1)
    site = config.for_site()
    state = get_state(build_for(site, config.seed))
    zeros = {name: np.zeros_like(array) for name, array in state.items() if is_parameter(name)}

    class Greedy(LoopbackGrid):
        def _answer(self, message: Message) -> Message | None:
            task = message.content.config_records.get("task")
            if task is not None and "sum of" in task:
                task["rule"], task["sum of"] = "scaffold", digest_of(state, {VARIATE: zeros}).hex()
            if message.metadata.message_type == "train":
                message.content["model"] = wire.pack_arrays(state)
                message.content[f"{EXTRA}{VARIATE}"] = wire.pack_arrays(zeros)
            return super()._answer(message)

    record, grid = run(config, Greedy(config.sites))
    assert not [key for reply in grid.replies for key in reply.content if key.startswith(EXTRA)]
    reasons = {event.reason for event in record.of(SiteLeftOut)}
    assert any("scaffold sends more than an update" in reason for reason in reasons)


def test_another_model_for_the_others_is_not_trained(small_config: MakeConfig) -> None:
    """Models that hardly move, given to all but one site, would leave its update alone in the sum."""

    def change(site: int, content: RecordDict) -> None:
        if site != 3:
            model = {name: 0 * array for name, array in wire.unpack_model(content).items()}
            content["model"] = wire.pack_arrays(model)

    reasons = told(small_config(method="fedavg", aggregate__rule="secure", rounds=1), "train", change)
    assert set(reasons) == {"000", "001", "002", "004", "005"}
    assert all("the model is not the one that this site agreed to train" in reason for reason in reasons.values())


@pytest.mark.parametrize("kind", ["query.shares", "train", "query.sign", "query.open"])
def test_other_settings_for_the_others_are_refused(small_config: MakeConfig, kind: str) -> None:
    """So would a learning rate of nearly nothing."""

    def change(site: int, content: RecordDict) -> None:
        if site != 3:
            task = content["task"]
            task["settings"] = str(task["settings"]).replace('"lr":0.1', '"lr":1e-30')

    reasons = told(small_config(method="fedavg", aggregate__rule="secure", rounds=1), kind, change)
    assert set(reasons) == {"000", "001", "002", "004", "005"}
    assert all("told otherwise" in reason for reason in reasons.values())


def test_other_settings_from_the_beginning_are_seen_in_the_signatures(small_config: MakeConfig) -> None:
    def change(site: int, content: RecordDict) -> None:
        if site != 3:
            task = content["task"]
            task["settings"] = str(task["settings"]).replace('"lr":0.1', '"lr":1e-30')

    config = small_config(method="fedavg", aggregate__rule="secure", rounds=1)
    grid = Meddling(config.sites, "query.keys", change)
    record, _ = run(config, grid)
    assert not [event for event in record.of(ReplyAccepted) if event.stage == "train"]
    reasons = {event.site: event.reason for event in record.of(SiteLeftOut)}
    # Site 3 alone was told what its later messages say.
    assert "1 keys to believe where 6 members need 5" in reasons["003"]
    assert "the signature of 000" in reasons["003"]


def test_an_update_is_sent_once(small_config: MakeConfig) -> None:
    """The same question again, as if the answer had been lost, finds that it was answered."""
    answers: list[Message | None] = []

    class Asking(LoopbackGrid):
        def _answer(self, message: Message) -> Message | None:
            answer = super()._answer(message)
            if message.metadata.message_type in ("query.shares", "train", "query.sign", "query.open"):
                answers.append(super()._answer(message))
            return answer

    config = small_config(method="fedavg", aggregate__rule="secure", rounds=1)
    record, _ = run(config, Asking(config.sites))
    assert not record.of(SiteLeftOut)
    assert len(answers) == 4 * 6
    reasons = [str(answer.content["refusal"]["reason"]) for answer in answers if answer is not None]
    assert all("out of turn" in reason or "begun no such sum" in reason for reason in reasons)
