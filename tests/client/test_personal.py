"""The last step at a site: what is set aside, what is chosen, and what a run reports of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from client.data import SiteData, load_site
from client.identity import Identity
from client.personal import LEAST, Candidate, Personalisation, set_aside
from common import wire
from common.config import Config
from common.models import build
from common.state import State
from server.app import conduct, initial_state
from server.history.events import Event, RoundFinished, SitesPersonalised
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, failed, on, run, run_to_disk

CPU = torch.device("cpu")


def site_of(config: Config, index: int = 0) -> SiteData:
    return load_site(Identity(f"{index:03d}", None, (index, config.sites), None), config.for_site())


class TestSetAside:
    def test_a_fifth_is_set_aside_the_same_every_time(self, small_config: MakeConfig) -> None:
        site = site_of(small_config(partition__scheme="iid"))
        (fitted, held), (again, _) = set_aside(site, 0), set_aside(site, 0)
        assert held is not None
        assert len(held.train) == pytest.approx(0.2 * len(site.train), abs=1)
        assert sorted([*fitted.train, *held.train]) == site.train.tolist()
        assert again.train.tolist() == fitted.train.tolist()
        assert fitted.test.tolist() == site.test.tolist()
        assert set_aside(site, 1)[0].train.tolist() != fitted.train.tolist()

    def test_a_site_with_few_samples_keeps_them_all(self, small_config: MakeConfig) -> None:
        site = site_of(small_config())
        few = replace(site, train=site.train[: LEAST - 1])
        assert set_aside(few, 0) == (few, None)


class TestChoice:
    def choose(
        self, small_config: MakeConfig, group: State, initial: State | None, **settings: object
    ) -> tuple[str, State]:
        config = small_config(partition__scheme="iid", rounds=8, **settings)
        model = build("lenet5", classes=10, channels=1, image_size=8, seed=None)
        personal = Personalisation(model, site_of(config), config.for_site(), config.rounds, CPU)
        return personal.choose(group, initial)

    def untrained(self, small_config: MakeConfig) -> State:
        return initial_state(small_config())

    def hopeless(self, small_config: MakeConfig) -> State:
        """A network whose body is dead: nothing can be made of it."""
        return {name: np.zeros_like(array) for name, array in self.untrained(small_config).items()}

    def test_an_untrained_group_model_is_trained_further(self, small_config: MakeConfig) -> None:
        kept, state = self.choose(small_config, self.untrained(small_config), None)
        assert kept == "finetuned"
        assert not np.array_equal(state["head.weight"], self.untrained(small_config)["head.weight"])

    def test_the_best_epoch_is_by_accuracy_then_by_loss(
        self, small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        course = [(1, 1.0), (2, 1.5), (2, 1.4), (1, 0.1), *(8 * [(2, 1.6)])]
        monkeypatch.setattr(Personalisation, "_train", lambda self, site, kept, epoch: None)
        monkeypatch.setattr(
            Personalisation, "_judged", lambda self, kept, epochs: Candidate(kept, epochs, *course[epochs])
        )
        config = small_config(partition__scheme="iid", rounds=8)
        model = build("lenet5", classes=10, channels=1, image_size=8, seed=None)
        personal = Personalisation(model, site_of(config), config.for_site(), config.rounds, CPU)
        assert personal._early_stopped("finetuned", self.untrained(small_config)).epochs == 2

    @pytest.mark.parametrize(("lead", "kept"), [(0, "finetuned"), (1, "finetuned"), (2, "local")])
    def test_alone_needs_a_clear_lead(
        self, small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, lead: int, kept: str
    ) -> None:
        """On a handful of validation samples one more is chance, and so is a smaller loss."""
        candidates = {"finetuned": Candidate("finetuned", 1, 3, 0.9), "local": Candidate("local", 1, 3 + lead, 0.1)}
        monkeypatch.setattr(Personalisation, "_early_stopped", lambda self, kept, start: candidates[kept])
        start = self.untrained(small_config)
        assert self.choose(small_config, start, start)[0] == kept

    def test_a_site_that_its_group_does_not_fit_stays_alone(self, small_config: MakeConfig) -> None:
        kept, _ = self.choose(small_config, self.hopeless(small_config), self.untrained(small_config))
        assert kept == "local"

    def test_what_training_does_not_improve_is_kept(self, small_config: MakeConfig) -> None:
        group = self.untrained(small_config)
        kept, state = self.choose(small_config, group, None, train__lr=1e6)
        assert kept == "group"
        assert all(np.array_equal(state[name], group[name]) for name in group)

    def test_the_same_seed_gives_the_same_bits(self, small_config: MakeConfig) -> None:
        start = self.untrained(small_config)
        first, second = (self.choose(small_config, start, start)[1] for _ in range(2))
        first = {name: array.copy() for name, array in first.items()}
        assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.federation
@pytest.mark.parametrize("mode", ["finetune", "select"])
def test_a_run_reports_it_apart_from_its_rounds(small_config: MakeConfig, tmp_path: Path, mode: str) -> None:
    config = small_config(method="fedavg", personalise=mode, rounds=3)
    record, grid = run(config)
    (told,) = record.of(SitesPersonalised)
    assert set(told.kept) == {f"{index:03d}" for index in range(6)}
    assert set(told.kept.values()) <= set(wire.KEPT[: 3 if mode == "select" else 2])
    assert told.mode == mode
    # Under strong label skew one model for all is far from any site's own.
    assert told.mean_site_accuracy > record.of(RoundFinished)[-1].mean_site_accuracy + 0.1
    asked = [message for message in grid.pushed if message.metadata.message_type == "query.personalise"]
    # Whoever trains alone draws the common start itself, so one model goes down whatever the mode.
    assert len(asked) == 6
    assert all(set(message.content.array_records) == {"model"} for message in asked)
    path = run_to_disk(config, tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    assert summary["personalised"]["accuracy"] == told.overall.accuracy
    assert summary["final"]["accuracy"] == record.of(RoundFinished)[-1].overall.accuracy
    assert summary["personalised"]["sites"]["003"]["kept"] == told.kept["003"]


def test_without_it_nothing_is_asked_and_nothing_told(small_config: MakeConfig, tmp_path: Path) -> None:
    record, grid = run(small_config(method="fedavg", rounds=1))
    assert not record.of(SitesPersonalised)
    assert not [m for m in grid.pushed if m.metadata.message_type == "query.personalise"]
    path = run_to_disk(small_config(method="fedavg", rounds=1), tmp_path / "run")
    assert "personalised" not in json.loads((path / "summary.json").read_text())


def test_a_site_that_fails_or_lies_is_named_and_left_out(small_config: MakeConfig) -> None:
    config = small_config(method="fedavg", personalise="finetune", rounds=1)
    record, _ = run(config, fault=on("query.personalise", 2, failed))
    assert "node unavailable" in record.reasons["personalise", "002"]
    assert "002" not in record.of(SitesPersonalised)[0].kept

    def lie(request: Message, reply: Message) -> Message:
        reply.content["evaluation"]["kept"] = 3
        return reply

    record, _ = run(config, fault=on("query.personalise", 1, lie))
    assert "kept model 3" in record.reasons["personalise", "001"]


def test_nobody_claims_more_test_samples_than_it_declared(small_config: MakeConfig) -> None:
    def boast(request: Message, reply: Message) -> Message:
        told = wire.unpack_evaluation(reply.content, classes=10, limit_mb=100)
        histograms = np.zeros_like(told.statistics.histograms)
        histograms[0, :, -1], histograms[1, :, 0] = 10**8, 9 * 10**8
        right = replace(told.statistics, confusion=np.diag(np.full(10, 10**8)), histograms=histograms)
        reply.content = wire.pack_evaluation(replace(told, statistics=right))
        return reply

    record, _ = run(
        small_config(method="fedavg", personalise="finetune", rounds=1), fault=on("query.personalise", 1, boast)
    )
    assert "claims 1000000000 test samples after declaring" in record.reasons["personalise", "001"]
    (told,) = record.of(SitesPersonalised)
    assert "001" not in told.sites
    assert told.overall.count == sum(metrics.count for metrics in told.sites.values()) < 10**6


def test_a_site_that_is_gone_at_the_end_is_named(small_config: MakeConfig) -> None:
    grid = LoopbackGrid(6)

    class Leaving(Record):
        def hear(self, event: Event) -> None:
            super().hear(event)
            if isinstance(event, RoundFinished):
                grid.disconnect(104)

    record = Leaving()
    conduct(grid, small_config(method="fedavg", personalise="finetune", rounds=1), [record])
    assert record.reasons["personalise", "004"] == "not connected"
    assert set(record.of(SitesPersonalised)[0].kept) == {"000", "001", "002", "003", "005"}


def test_no_group_model_trains_on_what_is_set_aside(small_config: MakeConfig) -> None:
    def samples(personalise: str) -> int:
        sent = []

        def spy(index: int, request: Message, reply: Message) -> Message:
            if request.metadata.message_type == "train":
                sent.append(int(reply.content["training"]["samples"]))
            return reply

        run(small_config(method="fedavg", personalise=personalise, rounds=1), fault=spy)
        return sum(sent)

    assert samples("finetune") == pytest.approx(0.8 * samples("none"), rel=0.03)
