"""The last step at a site: how models are judged, what is kept, and what a run reports of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from client.data import SiteData, load_site
from client.identity import Identity
from client.methods import SiteMethod, Visit
from client.methods.method import Trained
from client.personal import Kept, Personalisation
from client.personal import last_step as module
from common import wire
from common.config import Config
from common.models import build, get_state, set_prior, set_state
from common.prior import class_shares
from common.state import State
from server.app import conduct, initial_state
from server.history.events import Event, RoundFinished, RoundTrained, SitesPersonalised
from tests.support.federation import write_digits
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, failed, on, run, run_to_disk

CPU = torch.device("cpu")
MODES = ("finetune", "select", "blend")
# One of forty sites: some 36 samples of ten classes.
SMALL = {"partition__scheme": "iid", "sites": 40, "train__batch_size": 8}
# A run whose sites train on a tenth of their samples: some 30 each.
FEW = {"data__test_fraction": 0.9, "train__batch_size": 8}


def site_of(config: Config, index: int = 0) -> SiteData:
    return load_site(Identity(f"{index:03d}", None, (index, config.sites), None), config.for_site())


def network() -> torch.nn.Module:
    return build("lenet5", classes=10, channels=1, image_size=8, seed=None)


def personal(config: Config, site: SiteData | None = None) -> Personalisation:
    return Personalisation(network(), site or site_of(config), config.for_site(), config.rounds, CPU)


def choose(config: Config, group: State, site: SiteData | None = None) -> Kept:
    return personal(config, site).choose(group, lambda: initial_state(config))


def hopeless(config: Config) -> State:
    """A network whose body is dead: nothing can be made of it."""
    return {name: np.zeros_like(array) for name, array in initial_state(config).items()}


class TestJudgement:
    """Nobody is asked about what it has trained on, and everybody about all that can be judged."""

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[bytes]]]:
        """What is trained on and what is asked, in turn, by the bytes of the images."""
        told: list[tuple[str, set[bytes]]] = []
        for what in ("train", "log_probabilities"):
            real = getattr(module, what)

            def spy(
                model: object, inputs: np.ndarray, *rest: object, real: Any = real, what: str = what, **more: object
            ) -> object:
                told.append((what, {image.tobytes() for image in inputs}))
                return real(model, inputs, *rest, **more)

            monkeypatch.setattr(module, what, spy)
        return told

    def test_no_fold_is_judged_by_what_has_trained_on_it(
        self, small_config: MakeConfig, seen: list[tuple[str, set[bytes]]]
    ) -> None:
        config = small_config(**SMALL, personalise="blend", rounds=2)
        site = site_of(config)
        choose(config, initial_state(config), site)
        (first, all_of_them), *rest = seen
        assert first == "log_probabilities"
        asked: list[set[bytes]] = []
        last: set[bytes] = set()
        for what, images in rest:
            if what == "train":
                last = images
            else:
                assert not last & images
                asked.append(images)
        # Two ways of training, five folds each; together the folds are all that the group's model was asked about.
        assert len(asked) == 2 * module.FOLDS
        for way in (asked[: module.FOLDS], asked[module.FOLDS :]):
            assert set().union(*way) == all_of_them
        # What is kept has trained on everything in the end.
        assert last == {image.tobytes() for image in site.train_images()}

    def test_a_patient_is_never_on_both_sides(
        self, small_config: MakeConfig, seen: list[tuple[str, set[bytes]]]
    ) -> None:
        config = small_config(**SMALL, personalise="select", rounds=1)
        site = site_of(config)
        patients = np.array([f"patient {row % 23}" for row in range(len(site.samples))])
        site = replace(site, samples=replace(site.samples, groups=patients))
        whose = {
            image.tobytes(): patients[row] for image, row in zip(site.train_images(), site.train.tolist(), strict=True)
        }
        choose(config, initial_state(config), site)
        last: set[str] = set()
        asked = 0
        for what, images in seen[1:]:
            of = {str(whose[image]) for image in images}
            if what == "train":
                last = of
            else:
                asked += 1
                assert not last & of
        assert asked == 2 * module.FOLDS

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("rows", [[0], [0, 0], "one class", "each class once"])
    def test_a_few_samples_do_not_stop_it(self, small_config: MakeConfig, mode: str, rows: object) -> None:
        config = small_config(**SMALL, personalise=mode, rounds=1, train__prior="site")
        site = site_of(config)
        labels = site.train_labels
        few = {
            "one class": site.train[labels == labels[0]],
            "each class once": site.train[np.unique(labels, return_index=True)[1]],
        }.get(str(rows), site.train[: len(rows)])  # type: ignore[arg-type]
        site = replace(site, train=few)
        maker = personal(config, site)
        kept = maker.choose(initial_state(config), lambda: initial_state(config))
        if rows in ([0], "each class once"):
            assert kept.kept == "group"
        images = torch.zeros(3, 1, 8, 8)
        assert maker.network(kept).eval()(images).isfinite().all()


class TestChoice:
    def test_an_untrained_group_model_is_trained_further(self, small_config: MakeConfig) -> None:
        config = small_config(**SMALL, personalise="finetune")
        kept = choose(config, initial_state(config))
        assert kept.kept == "finetuned"
        assert not np.array_equal(kept.state["head.weight"], initial_state(config)["head.weight"])

    @pytest.mark.parametrize(("mode", "kept"), [("finetune", "group"), ("select", "local")])
    def test_a_site_that_its_group_does_not_fit_stays_alone(
        self, small_config: MakeConfig, mode: str, kept: str
    ) -> None:
        config = small_config(**SMALL, personalise=mode, rounds=8)
        # A dead body and a head of zeros learn nothing but the shares of the classes, which are equal here.
        assert choose(config, hopeless(config)).kept == kept

    def test_a_blend_leaves_a_group_that_does_not_fit(self, small_config: MakeConfig) -> None:
        config = small_config(**SMALL, personalise="blend", rounds=8)
        kept = choose(config, hopeless(config))
        assert kept.kept == "blend"
        assert kept.weight < 0.3

    @pytest.mark.parametrize("mode", MODES)
    def test_what_training_does_not_improve_is_kept(self, small_config: MakeConfig, mode: str) -> None:
        config = small_config(**SMALL, personalise=mode, train__lr=1e6)
        group = initial_state(config)
        kept = choose(config, group)
        assert kept.kept == "group"
        assert all(np.array_equal(kept.state[name], group[name]) for name in group)

    def test_the_model_trained_alone_is_the_one_that_local_makes(self, small_config: MakeConfig) -> None:
        config = small_config(method="local", sites=12, rounds=2, partition__scheme="iid", train__schedule="cosine")
        record, _ = run(config)
        model = network()
        maker = Personalisation(model, site_of(config, 1), config.for_site(), config.rounds, CPU)
        maker._training_alone(initial_state(config))(np.arange(len(site_of(config, 1).train)))
        made = get_state(model)
        theirs = record.of(RoundFinished)[-1].models[record.of(RoundTrained)[-1].labels["001"]]
        assert all(np.array_equal(theirs[name], made[name]) for name in made)

    def test_a_blend_is_made_of_both_and_weighed_by_what_each_says(self, small_config: MakeConfig) -> None:
        config = small_config(**SMALL, personalise="blend", rounds=3, train__prior="site")
        site = site_of(config)
        group = initial_state(config)
        maker = personal(config, site)
        kept = maker.choose(group, lambda: initial_state(config))
        assert kept.kept == "blend"
        assert kept.own is not None
        images = torch.rand(5, 1, 8, 8)
        said = maker.network(kept).eval()(images).detach().exp()
        parts = []
        for state in (group, kept.own):
            alone = network()
            set_state(alone, state)
            set_prior(alone, class_shares(site.class_counts))
            parts.append(alone.eval()(images).detach().softmax(dim=1))
        assert torch.allclose(said, kept.weight * parts[0] + (1 - kept.weight) * parts[1], atol=1e-6)
        assert torch.allclose(said.sum(dim=1), torch.ones(5))

    @pytest.mark.parametrize("mode", MODES)
    def test_the_same_seed_gives_the_same_bits(self, small_config: MakeConfig, mode: str) -> None:
        config = small_config(**SMALL, personalise=mode)
        first, second = (choose(config, initial_state(config)) for _ in range(2))
        assert first.weight == second.weight
        assert all(np.array_equal(first.state[name], second.state[name]) for name in first.state)

    def test_a_state_that_lies_in_the_network_is_not_lost(self, small_config: MakeConfig) -> None:
        config = small_config(**SMALL, personalise="blend")
        model = network()
        set_state(model, initial_state(config))
        maker = Personalisation(model, site_of(config), config.for_site(), 2, CPU)
        kept = maker.choose(get_state(model), lambda: initial_state(config))
        assert all(np.array_equal(kept.state[name], array) for name, array in initial_state(config).items())


@pytest.mark.federation
@pytest.mark.parametrize("mode", MODES)
def test_a_run_reports_it_apart_from_its_rounds(small_config: MakeConfig, tmp_path: Path, mode: str) -> None:
    config = small_config(**FEW, method="fedavg", personalise=mode, rounds=3)
    record, grid = run(config)
    (told,) = record.of(SitesPersonalised)
    assert set(told.kept) == {f"{index:03d}" for index in range(6)}
    allowed = {"finetune": {"finetuned"}, "select": {"finetuned", "local"}, "blend": {"finetuned", "local", "blend"}}
    assert set(told.kept.values()) <= {"group"} | allowed[mode]
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
    config = small_config(**FEW, method="fedavg", personalise="finetune", rounds=1)
    record, _ = run(config, fault=on("query.personalise", 2, failed))
    assert "node unavailable" in record.reasons["personalise", "002"]
    assert "002" not in record.of(SitesPersonalised)[0].kept

    def lie(request: Message, reply: Message) -> Message:
        reply.content["evaluation"]["kept"] = len(wire.KEPT)
        return reply

    record, _ = run(config, fault=on("query.personalise", 1, lie))
    assert f"kept model {len(wire.KEPT)}" in record.reasons["personalise", "001"]


def test_nobody_claims_more_test_samples_than_it_declared(small_config: MakeConfig) -> None:
    def boast(request: Message, reply: Message) -> Message:
        told = wire.unpack_evaluation(reply.content, classes=10, limit_mb=100)
        histograms = np.zeros_like(told.statistics.histograms)
        histograms[0, :, -1], histograms[1, :, 0] = 10**8, 9 * 10**8
        right = replace(told.statistics, confusion=np.diag(np.full(10, 10**8)), histograms=histograms)
        reply.content = wire.pack_evaluation(replace(told, statistics=right))
        return reply

    record, _ = run(
        small_config(**FEW, method="fedavg", personalise="finetune", rounds=1),
        fault=on("query.personalise", 1, boast),
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
    conduct(grid, small_config(**FEW, method="fedavg", personalise="finetune", rounds=1), [record])
    assert record.reasons["personalise", "004"] == "not connected"
    assert set(record.of(SitesPersonalised)[0].kept) == {"000", "001", "002", "003", "005"}


def trained_samples(config: Config) -> list[int]:
    """How many samples every site trained on, reply by reply."""
    sent = []

    def spy(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train":
            sent.append(int(reply.content["training"]["samples"]))
        return reply

    run(config, fault=spy)
    return sent


SWAP = [{"kind": "swap", "at": 2, "sites": 1.0}, {"kind": "vanish", "at": 2, "sites": 0.5}]


@pytest.mark.parametrize("drift", [[], SWAP])
def test_the_group_s_model_trains_on_everything(small_config: MakeConfig, drift: list[dict[str, object]]) -> None:
    """Nothing is set aside, so nothing that was set aside can have been trained on, whatever becomes of the data."""
    config = small_config(**FEW, method="fedavg", rounds=3, drift=drift)
    assert trained_samples(config.model_copy(update={"personalise": "blend"})) == trained_samples(config)


def test_data_that_change_are_judged_as_they_are_in_the_end(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under drift a model of the site's own is judged by models that have never seen the sample, whoever held it."""
    config = small_config(**FEW, method="fedavg", rounds=3, personalise="select", drift=SWAP)
    last: set[bytes] = set()
    asked = 0
    real_train, real_ask = module.train, module.log_probabilities

    def train(model: object, inputs: np.ndarray, *rest: object, **more: object) -> object:
        last.clear()
        last.update(image.tobytes() for image in inputs)
        return real_train(model, inputs, *rest, **more)  # type: ignore[arg-type]

    def ask(model: object, inputs: np.ndarray, **more: object) -> object:
        nonlocal asked
        if last:
            asked += 1
            assert not last & {image.tobytes() for image in inputs}
        return real_ask(model, inputs, **more)  # type: ignore[arg-type]

    real_choose = Personalisation.choose

    def fresh(self: Personalisation, *arguments: object) -> Kept:
        last.clear()
        return real_choose(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "log_probabilities", ask)
    monkeypatch.setattr(Personalisation, "choose", fresh)
    record, _ = run(config)
    assert len(record.of(SitesPersonalised)[0].kept) == 6
    assert asked > 6 * module.FOLDS


def test_a_folder_that_changes_is_judged_by_what_has_not_trained_on_it_and_tested_on_what_nothing_has(
    small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data.watch`: files come and go while the run lasts, and the last step finds them as they are then."""
    config = small_config(
        method="fedavg", personalise="select", rounds=3, sites=2, data__source="folder", data__watch=True,
        data__classes=tuple("01"), train__batch_size=8,
    )  # fmt: skip
    folders = [tmp_path / name / "scans" for name in ("000", "001")]
    for number, folder in enumerate(folders):
        write_digits(folder, [0, 1], first=40 * number, count=20)
    trained: set[bytes] = set()
    last: set[bytes] = set()
    asked: list[set[bytes]] = []
    real_train, real_ask, real_choose = module.train, module.log_probabilities, Personalisation.choose

    def train(model: object, inputs: np.ndarray, *rest: object, **more: object) -> object:
        last.clear()
        last.update(image.tobytes() for image in inputs)
        trained.update(last)
        return real_train(model, inputs, *rest, **more)  # type: ignore[arg-type]

    def ask(model: object, inputs: np.ndarray, **more: object) -> object:
        images = {image.tobytes() for image in inputs}
        # The first time it is the group's model that is asked, about everything; it has nothing of its own set aside.
        if last:
            assert not last & images
            asked.append(images)
        return real_ask(model, inputs, **more)  # type: ignore[arg-type]

    def choose(self: Personalisation, *arguments: object) -> Kept:
        last.clear()
        return real_choose(self, *arguments)  # type: ignore[arg-type]

    real_round = SiteMethod.train

    def one_round(self: SiteMethod, visit: Visit) -> Trained:
        trained.update(image.tobytes() for image in visit.site.train_images())
        return real_round(self, visit)

    monkeypatch.setattr(SiteMethod, "train", one_round)
    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "log_probabilities", ask)
    monkeypatch.setattr(Personalisation, "choose", choose)
    before: list[set[bytes]] = []

    class Changing(Record):
        def hear(self, event: Event) -> None:
            super().hear(event)
            if isinstance(event, RoundFinished) and not before:
                before.append(set(trained))
                for number, folder in enumerate(folders):
                    # A split by what is there now would take into the test part what has been trained on.
                    for row, path in enumerate(sorted(folder.rglob("*.png"))):
                        if row % 3:
                            path.unlink()
                    write_digits(folder.parent / "more", [0, 1], first=40 * number + 20, count=10)
                    for path in (folder.parent / "more").rglob("*.png"):
                        path.rename(folder / path.relative_to(folder.parent / "more"))

    record = Changing()
    places = {
        number: {"data-path": str(folder), "cache": str(folder.parent / "cache")}
        for number, folder in enumerate(folders)
    }
    conduct(LoopbackGrid(2, node_configs=places), config, [record])
    assert set(record.of(SitesPersonalised)[0].kept) == {"000", "001"}
    # There were new samples to judge, and each way of training was asked about all that the site had in the end.
    assert before
    assert set().union(*asked) - before[0]
    assert len(asked) == 2 * 2 * module.FOLDS
    tested = {
        image.tobytes()
        for folder in folders
        for image in load_site(
            Identity(folder.parent.name, folder, None, folder.parent / "cache"), config.for_site()
        ).test_images()
    }
    assert tested
    assert not tested & trained
