"""A round at a site: what came is tested, then trained, and either may fail without the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from client.answers import round as rounds
from client.answers.round import answer_question, test_round, train_round
from client.app import reply
from client.data import SiteData, load_site
from client.fingerprints import FINGERPRINTS
from client.identity import Identity
from client.methods import SiteMethod, Trained, Visit, site_method
from client.networks import network_of
from client.request import Request
from client.training import TEST_BATCH, TrainingDiverged, default_device, evaluate, train
from common import wire
from common.config import Config
from common.extras import Expected, Network, Rule, exactly
from common.fingerprint import KINDS
from common.methods import AGREEMENTS, Agreement, Question
from common.metrics import EvaluationStatistics
from common.models import get_state, set_state
from common.networks import build_for
from common.randomness import derive_seed
from common.state import State
from server.app import initial_state
from tests.support.loopback import set_task_identity
from tests.support.runs import MakeConfig

# pytest would take the product's function for a test.
test_round.__test__ = False  # type: ignore[attr-defined]

CLASSES = 10


@pytest.fixture
def config(small_config: MakeConfig) -> Config:
    return small_config(rounds=5, train__epochs=1)


@pytest.fixture
def model(config: Config) -> State:
    return initial_state(config)


def identity(config: Config, index: int = 0) -> Identity:
    return Identity(f"{index:03d}", None, (index, config.sites), None, in_engine=True)


def own_site(tmp_path: Path, config: Config) -> Identity:
    """A site whose errors are its own business."""
    return replace(identity(config), data_path=tmp_path / "data", cache=tmp_path / "cache")


def site_of(config: Config) -> SiteData:
    return load_site(identity(config), config.for_site())


def asked(config: Config, model: State, extras: Mapping[str, State] | None = None, **changes: object) -> Request:
    """A request as it arrives."""
    values: dict[str, object] = {"round_number": 2, "rounds": 5, "run": "ab12", "group": 0, "tests": 1}
    task = wire.Task(config.for_site(), **(values | changes))  # type: ignore[arg-type]
    content = wire.pack_task(task, wire.pack_arrays(model), wire.pack_extras(dict(extras or {})))
    return Request(content, wire.unpack_task(content), identity(config), site_of(config))


def read_test(content: RecordDict) -> EvaluationStatistics:
    return wire.unpack_evaluation(content, classes=CLASSES, limit_mb=100).statistics


def updated(content: RecordDict, model: State, declared: Mapping[str, Rule] | None = None) -> wire.Update:
    network = Network.of(model, CLASSES)
    return wire.unpack_update(content, declared=declared or {}, network=network, limit_mb=100)


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def by_hand(config: Config, model: State) -> EvaluationStatistics:
    """The received model on the test split, without any of the machinery."""
    network, site = build_for(config.for_site(), seed=None), site_of(config)
    set_state(network, model)
    return evaluate(
        network, site.test_inputs(), site.test_labels, classes=CLASSES, batch_size=TEST_BATCH, device=default_device()
    )


def trained_by_hand(config: Config, model: State) -> tuple[State, float]:
    """The received model after round 2 of a plain training."""
    network, site = build_for(config.for_site(), seed=None), site_of(config)
    set_state(network, model)
    result = train(
        network,
        site.train_inputs(),
        site.train_labels,
        config.train,
        round_number=2,
        rounds=5,
        seed=derive_seed(config.seed, "training", site.name, 2),
        device=default_device(),
    )
    return get_state(network), result.loss


def equal(first: EvaluationStatistics, second: EvaluationStatistics) -> bool:
    return (
        np.array_equal(first.confusion, second.confusion)
        and np.array_equal(first.histograms, second.histograms)
        and first.loss_sum == second.loss_sum
    )


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


class TestOneExchange:
    def test_the_model_that_came_is_tested_before_it_is_trained(self, config: Config, model: State) -> None:
        content = train_round(asked(config, model))
        assert equal(read_test(content), by_hand(config, model))
        assert read_test(content).confusion.sum() == len(site_of(config).test) > 0

    def test_the_update_is_that_of_a_plain_training(self, config: Config, model: State) -> None:
        update = updated(train_round(asked(config, model)), model)
        expected, loss = trained_by_hand(config, model)
        assert same(update.state, expected)
        assert not same(update.state, model)
        assert (update.loss, update.samples) == (loss, len(site_of(config).train))
        assert (update.extras, update.fresh) == ({}, False)

    def test_a_test_leaves_no_trace_in_the_training(self, small_config: MakeConfig) -> None:
        # With batch norm, which a test in the wrong mode would change.
        config = small_config(rounds=5, train__model="resnet9", sites=20)
        model = initial_state(config)
        with_test, without = (updated(train_round(asked(config, model, tests=tests)), model) for tests in (1, 0))
        assert same(with_test.state, without.state)
        assert with_test.loss == without.loss

    def test_without_a_test_there_is_none(self, config: Config, model: State) -> None:
        content = train_round(asked(config, model, tests=0))
        assert set(content) == {"model", "training"}
        with pytest.raises(wire.WireError, match="no 'evaluation' record"):
            read_test(content)
        assert updated(content, model).samples

    def test_who_only_tests_sends_no_model(self, config: Config, model: State) -> None:
        content = test_round(asked(config, model))
        assert set(content) == {"statistics", "evaluation"}
        assert equal(read_test(content), by_hand(config, model))

    def test_the_data_are_those_of_the_round_that_is_tested(
        self, config: Config, model: State, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        whole = Request.in_round

        def spy(request: Request, round_number: int) -> Request:
            seen.append(round_number)
            return whole(request, round_number)

        monkeypatch.setattr(Request, "in_round", spy)
        train_round(asked(config, model, round_number=4, tests=3))
        assert seen == [3]

    def test_the_start_of_a_site_alone_is_that_of_the_server(self, config: Config, model: State) -> None:
        assert same(asked(config, model).visit().start(), model)


class TestFailures:
    def test_a_test_that_fails_leaves_the_training(
        self, config: Config, model: State, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "tested", failing(TrainingDiverged("the scores are not finite")))
        content = train_round(asked(config, model))
        assert "untested" in content
        assert "refusal" not in content
        with pytest.raises(wire.WireError, match="TrainingDiverged: the scores are not finite"):
            read_test(content)
        assert same(updated(content, model).state, trained_by_hand(config, model)[0])

    def test_a_training_that_fails_leaves_the_test(
        self, config: Config, model: State, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SiteMethod, "train", failing(TrainingDiverged("the loss became nan")))
        content = train_round(asked(config, model))
        assert equal(read_test(content), by_hand(config, model))
        with pytest.raises(wire.WireError, match="TrainingDiverged: the loss became nan"):
            updated(content, model)

    def test_a_training_that_really_diverges_leaves_the_test(self, small_config: MakeConfig) -> None:
        config = small_config(rounds=5, train__lr=1e12, train__epochs=5)
        model = initial_state(config)
        content = train_round(asked(config, model))
        assert equal(read_test(content), by_hand(config, model))
        with pytest.raises(wire.WireError, match=r"TrainingDiverged: .*lower train\.lr"):
            updated(content, model)

    def test_both_may_fail(self, config: Config, model: State, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rounds, "tested", failing(TrainingDiverged("not finite")))
        monkeypatch.setattr(SiteMethod, "train", failing(TrainingDiverged("became nan")))
        content = train_round(asked(config, model))
        assert set(content) == {"untested", "refusal"}
        with pytest.raises(wire.WireError, match="not finite"):
            read_test(content)
        with pytest.raises(wire.WireError, match="became nan"):
            updated(content, model)

    def test_what_a_site_of_its_own_says_of_an_error_names_no_patient(
        self, config: Config, model: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "tested", failing(OSError("/data/smith.png is gone")))
        monkeypatch.setattr(SiteMethod, "train", failing(KeyError("/data/smith.png")))
        monkeypatch.setattr(Request, "in_round", lambda request, round_number: request)
        request = replace(asked(config, model), identity=own_site(tmp_path, config))
        content = train_round(request)
        for record, kind in (("untested", "OSError"), ("refusal", "KeyError")):
            reason = str(content.config_records[record]["reason"])
            assert "smith" not in reason
            assert kind in reason
            assert "own log says more" in reason

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda model: model | {"head.bias": np.zeros(3, np.float32)}, "does not fit lenet5: head.bias"),
            (lambda model: {name: model[name] for name in model if name != "head.bias"}, "lacks head.bias"),
            (lambda model: model | {"tail": np.zeros(3, np.float32)}, "tail"),
        ],
    )
    def test_a_model_that_does_not_fit_is_named_in_both(
        self, config: Config, model: State, change: Callable[[State], State], reason: str
    ) -> None:
        content = train_round(asked(config, change(model)))
        with pytest.raises(wire.WireError, match=reason):
            read_test(content)
        with pytest.raises(wire.WireError, match=reason):
            updated(content, model)

    def test_what_nobody_declared_is_refused_at_the_site(self, config: Config, model: State) -> None:
        content = train_round(asked(config, model, {"ballast": model}))
        with pytest.raises(wire.WireError, match="carries 'ballast', which nobody asked for"):
            updated(content, model)
        with pytest.raises(wire.WireError, match="carries 'ballast', which nobody asked for"):
            read_test(content)


HOSTILE = (
    "os", "../x", "method", "__init__", "client.methods.fedprox", "fedprox.Prox", "fedprox\0", "", ".", "fedprox ",
    "subprocess", "fédprox", "\x1b[2J",
)  # fmt: skip


class TestRules:
    @pytest.mark.parametrize("rule", HOSTILE)
    def test_an_unknown_rule_is_refused_by_name_and_nothing_is_imported(
        self, config: Config, model: State, rule: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = asked(config, model, rule=rule)
        imported = set(sys.modules)
        monkeypatch.setattr("importlib.import_module", failing(AssertionError("something is imported")))
        content = train_round(request)
        assert set(sys.modules) == imported
        named = f"this site knows no rule {wire.plain_text(rule)!r}: update it"
        with pytest.raises(wire.WireError) as caught:
            updated(content, model)
        assert named in str(caught.value)
        assert str(caught.value).isprintable()
        with pytest.raises(wire.WireError) as caught:
            read_test(content)
        assert named in str(caught.value)

    def test_every_rule_that_is_agreed_on_is_known(self) -> None:
        for rule in ("fedavg", *AGREEMENTS):
            assert site_method(rule).agreement.rule == rule

    def test_a_rule_without_a_file_trains_plainly(self, config: Config, model: State) -> None:
        update = updated(train_round(asked(config, model, rule="cfl")), model)
        assert same(update.state, trained_by_hand(config, model)[0])

    def test_fedprox_reins_by_its_own_setting(self, small_config: MakeConfig) -> None:
        free, reined = (small_config(rounds=5, fedprox__mu=mu) for mu in (0.0, 5.0))
        model = initial_state(free)
        states = [updated(train_round(asked(one, model, rule="fedprox")), model).state for one in (free, reined)]
        assert same(states[0], trained_by_hand(free, model)[0])
        apart = [sum(float(((state[name] - model[name]) ** 2).sum()) for name in model) for state in states]
        assert apart[1] < 0.9 * apart[0]


class TestQuestions:
    @pytest.mark.parametrize("question", ["", "os", "../x", "answer", "losses ", "\x1b[2J"])
    @pytest.mark.parametrize("rule", ["fedavg", "ifca"])
    def test_an_unknown_question_is_refused_by_name(
        self, config: Config, model: State, rule: str, question: str
    ) -> None:
        with pytest.raises(wire.WireError) as caught:
            answer_question(asked(config, model, rule=rule, question=question))
        assert str(caught.value) == f"this site knows no question {wire.plain_text(question)!r} of {rule}"

    def test_a_question_of_another_method_is_refused(self, config: Config, model: State) -> None:
        with pytest.raises(wire.WireError, match="knows no question 'losses' of fedprox"):
            answer_question(asked(config, model, rule="fedprox", question="losses"))

    def test_a_question_of_an_unknown_rule_is_refused(self, config: Config, model: State) -> None:
        with pytest.raises(wire.WireError, match="knows no rule 'os'"):
            answer_question(asked(config, model, rule="os", question="losses"))

    def test_ifca_tells_the_losses_in_the_order_of_the_starts(self, config: Config, model: State) -> None:
        hopeless = {name: array * 50 for name, array in model.items()}
        starts = {"group.0": hopeless, "group.1": model, "group.10": hopeless}
        content = answer_question(asked(config, {}, starts, rule="ifca", question="losses"))
        question = AGREEMENTS["ifca"].questions["losses"]
        network = Network.of(model, CLASSES)
        answer = wire.unpack_answered(content, declared=question.up, network=network, limit_mb=1)
        losses = answer.extras["losses"]["values"]
        assert losses.shape == (3,)
        assert losses[0] == losses[2] > losses[1]

    def test_through_the_app_a_refusal_is_an_answer(self, config: Config, model: State) -> None:
        set_task_identity()
        message = Message(asked(config, model, question="os").content, 100, "query.method")
        node = {"partition-id": 0, "num-partitions": config.sites}
        context = Context(run_id=1, node_id=100, node_config=node, state=RecordDict(), run_config={})  # type: ignore[arg-type]
        content = reply(message, context, answer_question).content
        assert "knows no question 'os' of fedavg" in str(content.config_records["refusal"]["reason"])


# A method of the tests' own, with everything that a method may have

NOTE = Expected("int64")
REMEMBERING = Agreement(
    "remembering",
    down={"note": exactly(number=NOTE)},
    up={"note": exactly(number=NOTE)},
    questions={"recall": Question(up={"note": exactly(number=NOTE)})},
    shared=lambda state, _: {name for name in state if not name.startswith("head.")},
    remembers=True,
)


class Remembering(SiteMethod):
    """Trains nothing; the head, which stays at the site, counts the rounds that counted."""

    def train(self, visit: Visit) -> Trained:
        served = self.served(visit)
        own = {name: array + 1 for name, array in served.items() if name.startswith("head.")}
        shared = {name: array for name, array in served.items() if not name.startswith("head.")}
        return Trained(shared, 5, 0.5, {"note": {"number": visit.extras["note"]["number"] * 2}}, own)


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method, as if it had files."""
    monkeypatch.setattr("client.request.site_method", lambda rule: Remembering(REMEMBERING))


@pytest.mark.usefixtures("remembering")
class TestMemory:
    def visit(self, config: Config, model: State, folder: Path, **changes: object) -> wire.Update:
        shared = {name: array for name, array in model.items() if not name.startswith("head.")}
        note = {"note": {"number": np.array(4)}}
        values: dict[str, object] = {"tests": 0, "folder": str(folder), "round_number": 1}
        request = asked(config, shared, note, **(values | changes))
        return updated(train_round(request), shared, REMEMBERING.up)

    def head(self, config: Config, folder: Path, accepted: int) -> np.ndarray:
        request = asked(config, {}, folder=str(folder), accepted=accepted)
        remembered = request.memory.recall(accepted)
        assert remembered is not None
        return remembered["head.bias"]

    def test_what_is_a_sites_own_stays_and_what_is_declared_travels(
        self, config: Config, model: State, tmp_path: Path
    ) -> None:
        update = self.visit(config, model, tmp_path)
        assert set(update.state) == {name for name in model if not name.startswith("head.")}
        assert int(update.extras["note"]["number"]) == 8
        np.testing.assert_array_equal(self.head(config, tmp_path, 1), model["head.bias"] + 1)

    def test_a_round_goes_on_from_the_version_that_counted(self, config: Config, model: State, tmp_path: Path) -> None:
        self.visit(config, model, tmp_path)
        self.visit(config, model, tmp_path, round_number=2, accepted=1)
        np.testing.assert_array_equal(self.head(config, tmp_path, 2), model["head.bias"] + 1 + 1)
        # The answer of round 2 is lost: round 3 goes on from round 1.
        self.visit(config, model, tmp_path, round_number=3, accepted=1)
        np.testing.assert_array_equal(self.head(config, tmp_path, 3), model["head.bias"] + 1 + 1)

    def test_a_site_that_has_forgotten_says_so(self, config: Config, model: State, tmp_path: Path) -> None:
        assert not self.visit(config, model, tmp_path).fresh
        assert not self.visit(config, model, tmp_path, round_number=2, accepted=1).fresh
        assert self.visit(config, model, tmp_path / "elsewhere", round_number=3, accepted=2).fresh
        # Nobody expects a memory of a site that never counted.
        assert not self.visit(config, model, tmp_path / "new", round_number=3, accepted=0).fresh

    def test_it_is_written_before_the_answer_goes_out(
        self, config: Config, model: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("client.memory.Memory.remember", failing(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            self.visit(config, model, tmp_path)

    def test_the_site_is_tested_with_what_is_its_own(self, config: Config, model: State, tmp_path: Path) -> None:
        self.visit(config, model, tmp_path)
        shared = {name: array for name, array in model.items() if not name.startswith("head.")}
        content = test_round(asked(config, shared, round_number=2, accepted=1, folder=str(tmp_path)))
        served = shared | {name: array + 1 for name, array in model.items() if name.startswith("head.")}
        assert equal(read_test(content), by_hand(config, served))

    def test_a_test_writes_nothing(self, config: Config, model: State, tmp_path: Path) -> None:
        shared = {name: array for name, array in model.items() if not name.startswith("head.")}
        test_round(asked(config, shared, folder=str(tmp_path)))
        assert not list(tmp_path.iterdir())

    def test_what_is_declared_and_missing_stops_the_training_alone(
        self, config: Config, model: State, tmp_path: Path
    ) -> None:
        shared = {name: array for name, array in model.items() if not name.startswith("head.")}
        content = train_round(asked(config, shared, folder=str(tmp_path)))
        assert equal(read_test(content), by_hand(config, model))
        with pytest.raises(wire.WireError, match="it lacks note"):
            updated(content, shared, REMEMBERING.up)

    def test_a_question_that_is_declared_and_not_answered_is_a_mistake_of_the_method(
        self, config: Config, tmp_path: Path
    ) -> None:
        with pytest.raises(NotImplementedError, match="remembering declares the question 'recall'"):
            answer_question(asked(config, {}, question="recall", folder=str(tmp_path)))


def test_the_network_is_built_once_per_run(config: Config) -> None:
    assert network_of(config.for_site(), identity(config)) is network_of(config.for_site(), identity(config))


def test_every_fingerprint_is_known_by_its_kind() -> None:
    assert set(FINGERPRINTS) == set(KINDS)
