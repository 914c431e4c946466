"""A site's class shares in its softmax: what they do in training and at prediction, and that they stay at the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from client.data import SiteData
from client.identity import Identity
from client.networks import network_of
from client.request import Request, data_of
from client.request import tested as on_its_own_test_split
from client.training import log_probabilities, plain, train
from common import wire
from common.config import Config, TrainSettings, parse
from common.head_path import HeadPath
from common.models import Network, build, get_state, set_prior, set_state
from common.prior import class_shares
from common.wire.records import unpack_arrays
from server.history.events import RoundFinished, SiteLeftOut, SitesMoved, SitesPersonalised
from server.methods import METHODS
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, run
from tests.support.tables import wine_settings

CPU = torch.device("cpu")
SHARES = np.array([0.7, 0.2, 0.1])
MANY_ROUNDS = [name for name, method in METHODS.items() if not method.one_round]


def network(seed: int = 3) -> Network:
    model = build("mlp", classes=3, channels=1, image_size=8, features=5, seed=seed)
    assert isinstance(model, Network)
    return model


def rows(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 5)).astype(np.float32), rng.integers(0, 3, count)


def site_of(config: Config, index: int = 0) -> SiteData:
    identity = Identity(f"{index:03d}", None, (index, config.sites), None)
    return data_of(identity, wire.Task(config.for_site(), 1, config.rounds, 0), 1)


# --- what it does ----------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_scores_plus_the_log_shares() -> None:
    model, (inputs, labels) = network(), rows()
    bare = model(torch.from_numpy(inputs)).double()
    set_prior(model, SHARES)
    scores = bare.detach().numpy() + np.log(SHARES)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(chances[np.arange(len(labels)), labels]).mean()
    loss = plain(model, torch.from_numpy(inputs), torch.from_numpy(labels))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_predictions_are_those_of_the_scores_plus_the_log_shares() -> None:
    model, (inputs, _) = network(), rows()
    bare = log_probabilities(model, inputs, classes=3, batch_size=4, device=CPU).exp().numpy()
    set_prior(model, SHARES)
    found = log_probabilities(model, inputs, classes=3, batch_size=4, device=CPU).exp().numpy()
    weighted = bare * SHARES
    np.testing.assert_allclose(found, weighted / weighted.sum(axis=1, keepdims=True), rtol=1e-5)
    assert np.abs(found - bare).max() > 0.1


def test_training_follows_the_gradient_of_that_loss() -> None:
    inputs, labels = rows()
    settings = TrainSettings(model="mlp", lr=0.1, batch_size=len(labels))
    model = network()
    set_prior(model, SHARES)
    train(model, inputs, labels, settings, round_number=1, rounds=1, seed=0, device=CPU)
    other = network()
    scores = other(torch.from_numpy(inputs)) + torch.from_numpy(np.log(SHARES)).float()
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
    for name, parameter in other.named_parameters():
        expected = (parameter - 0.1 * parameter.grad).detach().numpy()  # type: ignore[operator]
        np.testing.assert_allclose(get_state(model)[name], expected, atol=1e-6)


def test_equal_shares_change_nothing_but_rounding() -> None:
    model, (inputs, _) = network(), rows()
    bare = log_probabilities(model, inputs, classes=3, batch_size=4, device=CPU)
    set_prior(model, np.full(3, 1 / 3))
    torch.testing.assert_close(
        log_probabilities(model, inputs, classes=3, batch_size=4, device=CPU), bare, atol=1e-6, rtol=0
    )


def test_a_class_the_site_never_saw_can_be_predicted() -> None:
    model, (inputs, _) = network(), rows()
    set_prior(model, class_shares(np.array([100, 100, 0])))
    sure = get_state(model) | {"head.bias": np.array([0, 0, 20], np.float32)}
    set_state(model, sure)
    found = log_probabilities(model, inputs, classes=3, batch_size=4, device=CPU)
    assert found.isfinite().all()
    assert (found.argmax(dim=1) == 2).all()


# --- it stays at the site --------------------------------------------------------------------------------------


def test_the_state_has_no_such_tensor() -> None:
    model = network()
    names = set(get_state(model))
    set_prior(model, SHARES)
    assert set(get_state(model)) == names
    assert not any("prior" in name for name in names)


@pytest.fixture
def requests(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, np.ndarray | None]]:
    """Every visit of every site from here on: whose it is, and the prior that the network has afterwards."""
    seen: list[tuple[str, np.ndarray | None]] = []
    visit = Request.visit

    def spied(self: Request, *arguments: object, **options: object) -> object:
        found = visit(self, *arguments, **options)  # type: ignore[arg-type]
        prior = found.network.log_prior
        seen.append((self.site.name, None if prior is None else prior.numpy().copy()))
        return found

    monkeypatch.setattr(Request, "visit", spied)
    return seen


def test_every_site_has_its_own_although_they_share_a_network(
    small_config: MakeConfig, requests: list[tuple[str, np.ndarray | None]]
) -> None:
    config = small_config(method="fedavg", train__prior="site")
    run(config)
    own = {f"{index:03d}": np.log(class_shares(site_of(config, index).class_counts)) for index in range(6)}
    assert {name for name, _ in requests} == set(own)
    for name, prior in requests:
        assert prior is not None
        np.testing.assert_allclose(prior, own[name], rtol=1e-6)
    assert len({prior.tobytes() for _, prior in requests if prior is not None}) == 6


def test_a_run_without_it_is_not_touched_by_one_with_it(
    small_config: MakeConfig, requests: list[tuple[str, np.ndarray | None]]
) -> None:
    def figures() -> list[float]:
        return [event.overall.loss for event in run(small_config(method="fedavg"))[0].of(RoundFinished)]

    before = figures()
    with_prior = [e.overall.loss for e in run(small_config(method="fedavg", train__prior="site"))[0].of(RoundFinished)]
    requests.clear()
    assert figures() == before != with_prior
    assert requests
    assert all(prior is None for _, prior in requests)


def test_a_network_of_the_process_forgets_the_last_site(small_config: MakeConfig) -> None:
    """Within one run too: the settings are the same, and so is the network."""
    settings = small_config(method="fedavg", train__prior="site").for_site()
    somebody = Identity("000", None, (0, 6), None)
    assert network_of(settings, somebody) is network_of(settings, Identity("000", None, (0, 6), None))
    set_prior(network_of(settings, somebody), np.full(10, 0.1))
    set_prior(network_of(settings, somebody), None)
    assert network_of(settings, somebody).log_prior is None


def arrays_of(message: Message) -> Iterator[np.ndarray]:
    if not message.has_content():
        return
    for name in message.content.array_records:
        yield from (
            array.astype(np.float64).ravel() for array in unpack_arrays(message.content.array_records[name]).values()
        )
    for record in (*message.content.metric_records.values(), *message.content.config_records.values()):
        for value in record.values():  # type: ignore[attr-defined]
            several = value if isinstance(value, list) else [value]
            yield np.array([one for one in several if isinstance(one, int | float)], np.float64)


def holds(array: np.ndarray, sought: np.ndarray) -> bool:
    """Whether the numbers stand in the array in a row."""
    if len(array) < len(sought):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(array, len(sought))
    return bool(np.isclose(windows, sought, rtol=1e-5, atol=0).all(axis=1).any())


def test_what_is_searched_for_would_be_found() -> None:
    assert holds(np.array([9, 0.7, 0.2, 0.1, 4]).astype(np.float32).astype(np.float64), SHARES)
    assert not holds(np.array([0.7, 0.1, 0.2]), SHARES)


@pytest.mark.parametrize(
    ("method", "more"), [("fedavg", {"personalise": "select"}), ("fedcm", {}), ("ifca", {"cluster__k": 2})]
)
def test_no_message_holds_the_shares(small_config: MakeConfig, method: str, more: dict[str, object]) -> None:
    config = small_config(method=method, train__prior="site", sites=3, data__test_fraction=0.8, **more)
    record, grid = run(config)
    assert not record.of(SiteLeftOut)
    messages = [*grid.pushed, *grid.replies]
    assert len(messages) > 12
    assert sum(1 for message in messages for _ in arrays_of(message)) > 100
    secrets = []
    for index in range(3):
        shares = class_shares(site_of(config, index).class_counts)
        secrets += [shares, np.log(shares)]
    for message in messages:
        for array in arrays_of(message):
            assert not any(holds(array, secret) for secret in secrets), message.metadata.message_type


# --- with every method -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MANY_ROUNDS)
def test_every_method_runs_with_it_and_is_changed_by_it(small_config: MakeConfig, method: str) -> None:
    k = 2 if METHODS[method].needs_k else 0
    losses = []
    for prior in ("site", "off"):
        config = small_config(
            method=method, train__prior=prior, cluster__k=k, sites=4, train__model="mlp", train__lr=0.05
        )
        record, _ = run(config)
        assert not record.of(SiteLeftOut)
        rounds = record.of(RoundFinished)
        assert len(rounds) == 2
        losses.append(rounds[-1].overall.loss)
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]


@pytest.mark.parametrize("mode", ["finetune", "select", "blend"])
def test_personalisation_works_with_it(small_config: MakeConfig, mode: str) -> None:
    few = {"sites": 3, "data__test_fraction": 0.9, "train__batch_size": 8}
    record, _ = run(small_config(method="fedavg", train__prior="site", personalise=mode, **few))
    assert not record.of(SiteLeftOut)
    (told,) = record.of(SitesPersonalised)
    assert len(told.kept) == 3
    assert told.overall.loss < record.of(RoundFinished)[-1].overall.loss


def test_under_label_skew_one_model_for_all_is_far_better_with_it(small_config: MakeConfig) -> None:
    def accuracy(prior: str) -> float:
        config = small_config(method="fedavg", train__prior=prior, partition__alpha=0.1, rounds=4)
        return float(run(config)[0].of(RoundFinished)[-1].overall.accuracy)

    assert accuracy("site") > accuracy("off") + 0.2


def paths(record: Record, grid: LoopbackGrid) -> list[np.ndarray]:
    asked = {m.metadata.message_id for m in grid.pushed if m.metadata.message_type.startswith("query.")}
    replies = [reply for reply in grid.replies if reply.metadata.reply_to_message_id in asked]
    return [
        array
        for reply in replies
        if HeadPath.kind in reply.content
        for array in unpack_arrays(reply.content.array_records[HeadPath.kind]).values()
    ]


def test_it_is_the_default() -> None:
    assert Config().train.prior == "site"


def test_fedcm_sees_the_same_paths_with_and_without(small_config: MakeConfig) -> None:
    with_it, without = (paths(*run(small_config(method="fedcm", train__prior=prior))) for prior in ("site", "off"))
    assert len(with_it) == len(without) >= 6
    assert all(np.array_equal(one, other) for one, other in zip(with_it, without, strict=True))


@pytest.mark.parametrize(
    "more",
    [
        {"method": "fmcl", "train__model": "mlp"},
        {"method": "fedcm", "train__model": "mlp"},
        {
            "method": "fmcl", "train__model": "head", "train__lr": 0.01, "encoder__name": "pixels",
            "encoder__image_size": 8,
        },
    ],
    ids=["fmcl", "fedcm", "fmcl on heads"],
)  # fmt: skip
def test_a_drift_is_noticed_with_it(small_config: MakeConfig, more: dict[str, object]) -> None:
    config = small_config(
        sites=8, rounds=10, partition__scheme="disjoint", partition__groups=2, cluster__k=2,
        migration__rule="guarded", drift='[{"kind": "swap", "at": 7, "sites": ["000", "001"]}]',
        train__batch_size=8, train__prior="site", **more,
    )  # fmt: skip
    record, _ = run(config)
    homes = record.of(RoundFinished)[0].labels
    assert [(move.sites[0], move.target) for move in record.of(SitesMoved)] == [
        ("000", homes["001"]),
        ("001", homes["000"]),
    ]
    calm, _ = run(config.model_copy(update={"drift": ()}))
    assert not calm.of(SitesMoved)


def test_tables_have_it_too(tmp_path: Path) -> None:
    def last(prior: str) -> RoundFinished:
        config = parse(wine_settings(tmp_path, method="fedavg", rounds=2, train__epochs=2, train__prior=prior))
        record, _ = run(config)
        assert not record.of(SiteLeftOut)
        return record.of(RoundFinished)[-1]

    assert last("site").overall.loss < last("off").overall.loss


def test_the_reported_figures_are_those_with_the_shares(small_config: MakeConfig) -> None:
    config = small_config(method="local", train__prior="site", sites=3, rounds=1)
    record, _ = run(config)
    last = record.of(RoundFinished)[-1]
    site = site_of(config, 1)
    model = network_of(config.for_site(), Identity("000", None, (0, 6), None))
    set_state(model, last.models[last.labels["001"]])
    set_prior(model, class_shares(site.class_counts))
    statistics = on_its_own_test_split(model, site, forgiving=False)
    assert statistics.loss_sum / len(site.test) == pytest.approx(last.sites["001"].loss, rel=1e-6)
    set_prior(model, None)
    assert on_its_own_test_split(model, site, forgiving=False).loss_sum / len(site.test) != pytest.approx(
        last.sites["001"].loss, rel=1e-3
    )
