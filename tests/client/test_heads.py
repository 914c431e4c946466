"""Heads on the frozen encoder: what they read, what travels, what is kept, and where they cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cli.main import main
from cli.suites.preparation import prepare_cells
from cli.suites.suite import Cell
from client.answers.round import train_round
from client.data import SiteData, load_site
from client.data.files import read_images
from client.encoder import Encoder, load_encoder
from client.identity import Identity
from client.methods import site_method
from client.onnx_export import onnx_input
from client.prediction import Prediction, open_model, predict
from client.request import Request, data_of
from client.request import tested as on_test_split
from client.training import features
from common import wire
from common.config import Config, EncoderSettings, SettingsError, parse
from common.encoders import COLUMNS, embedding_width
from common.kept_model import load_model
from common.methods.fedccfa import ANCHORS, HEAD, OWN_HEAD, PROTOTYPES
from common.metrics import EvaluationStatistics
from common.models import EMBEDDING_LENGTH, build, get_state
from common.state import State
from common.wire.records import unpack_arrays
from server.app import conduct, initial_state
from server.history.events import GroupsFormed, RoundFinished, SiteLeftOut
from server.methods import settle
from tests.client.test_table_models import agrees_with_its_card, hold_run, kept_at
from tests.support.federation import write_digits
from tests.support.loopback import LoopbackGrid
from tests.support.policies import lenient
from tests.support.runs import MakeConfig, Record, kept_model, run, run_to_disk
from tests.support.tables import wine_settings

HEADS = ["head", "head-mlp"]
CENTRE = "body.1.running_mean"


@pytest.fixture
def with_head(small_config: MakeConfig) -> MakeConfig:
    """A head at the default rate, on pixels."""

    def make(**overrides: object) -> Config:
        settings = {"train__model": "head", "train__lr": 0.01, "method": "fedavg"}
        return small_config(**(settings | {"encoder__name": "pixels", "encoder__image_size": 8} | overrides))

    return make


# --- the network -----------------------------------------------------------------------------------------------


def test_a_linear_head_starts_from_zeros_and_weighs_56_kilobytes() -> None:
    state = get_state(build("head", classes=10, channels=3, image_size=32, features=1280, seed=5))
    assert set(state) == {"head.weight", "head.bias", CENTRE}
    assert not any(array.any() for array in state.values())
    assert sum(array.nbytes for array in state.values()) == 4 * (1280 * 10 + 10 + 1280)
    assert 56_000 < sum(len(array.data) for array in wire.pack_arrays(state).values()) < 57_000


def test_a_head_with_a_hidden_layer_is_drawn_by_the_seed() -> None:
    one, same, other = (
        get_state(build("head-mlp", classes=3, channels=3, image_size=32, features=20, seed=seed)) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["head.weight"], other["head.weight"])
    assert one["head.weight"].any()


@pytest.mark.parametrize("name", HEADS)
def test_the_scale_of_an_embedding_does_not_matter(name: str) -> None:
    model = build(name, classes=3, channels=3, image_size=32, features=20, seed=1)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    vectors = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(vectors), model(1000 * vectors), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(model(vectors), model(-vectors))


def test_a_linear_head_is_linear_on_vectors_of_one_length() -> None:
    model = build("head", classes=3, channels=3, image_size=32, features=20, seed=1)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    vectors = np.random.default_rng(0).normal(size=(4, 20))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = EMBEDDING_LENGTH * unit @ get_state(model)["head.weight"].T
    np.testing.assert_allclose(
        model(torch.from_numpy(vectors).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-4
    )


def test_an_embedding_of_zeros_does_no_harm() -> None:
    assert build("head", classes=3, channels=3, image_size=32, features=20, seed=1)(torch.zeros(2, 20)).isfinite().all()


@pytest.mark.parametrize("name", HEADS)
def test_a_head_reads_no_images_and_a_network_for_images_no_vectors(name: str) -> None:
    with pytest.raises(ValueError, match="cannot read images"):
        build(name, classes=3, channels=3, image_size=32, seed=1)
    with pytest.raises(ValueError, match="cannot read vectors of 20 numbers"):
        build("lenet5", classes=3, channels=3, image_size=32, features=20, seed=1)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("efficientnet_lite0", 64), ("pixels", 0), ("pixels", 8), ("random:resnet10t", 32),
        # A layer more behind its last features: 1280 numbers, and not 960.
        ("random:mobilenetv3_large_100", 64),
    ],
)  # fmt: skip
def test_the_server_knows_how_long_an_embedding_is(name: str, size: int) -> None:
    settings = EncoderSettings(name=name, image_size=size)
    encoder = load_encoder(settings, 0)
    pixels = np.zeros((1, encoder.size, encoder.size, 3), np.uint8)
    assert embedding_width(settings, Config().data) == encoder.embed(pixels).shape[1]


def test_an_encoder_that_nobody_knows_is_named() -> None:
    with pytest.raises(SettingsError, match="timm has no model 'resnet_of_dreams'"):
        embedding_width(EncoderSettings(name="timm:resnet_of_dreams"), Config().data)


# --- the centre ------------------------------------------------------------------------------------------------


def sent_to(config: Config, rule: str, *, held: bool = False) -> tuple[Request, State]:
    """A round at a site that is sent a model with a centre that is not its own."""
    whole = initial_state(config.model_copy(update={"method": "fedavg"}))
    whole[CENTRE] = np.linspace(-0.2, 0.3, len(whole[CENTRE]), dtype=np.float32)
    agreement, extras = site_method(rule).agreement, {}
    if rule == "fedccfa":
        head = {name: array for name, array in whole.items() if name.startswith("head.")}
        anchors = {"held": np.zeros(10, np.int64), "known": np.array(0), "means": np.zeros_like(head["head.weight"])}
        extras = {OWN_HEAD: head, ANCHORS: anchors}
    received = agreement.travelling(whole, config.for_site())
    task = wire.Task(config.for_site(), 2, 5, "ab12", rule, group=0, held=held)
    content = wire.pack_task(task, wire.pack_arrays(received), wire.pack_extras(extras))
    identity = Identity("000", None, (0, config.sites), None, in_engine=True)
    task = wire.unpack_task(content)
    return Request(content, task, identity, data_of(identity, task, 2)), received


def test_pfedme_keeps_its_own_model_with_the_centre_it_was_trained_under(with_head: MakeConfig) -> None:
    request, received = sent_to(with_head(method="pfedme"), "pfedme")
    trained = request.method.train(request.visit())
    assert trained.memory is not None
    np.testing.assert_array_equal(trained.memory[CENTRE], received[CENTRE])
    # What travels is the site's own, for the mean over the sites.
    np.testing.assert_allclose(trained.state[CENTRE], request.site.train_inputs().mean(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["fedavg", "fedper", "pfedme", "fedccfa"])
def test_what_a_site_holds_is_tested_with_the_centre_it_was_trained_under(
    with_head: MakeConfig, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, received = sent_to(with_head(train__model="head-mlp", cache=str(tmp_path)), rule, held=True)
    seen: list[State] = []

    def spy(model: torch.nn.Module, site: SiteData, *, forgiving: bool) -> EvaluationStatistics:
        seen.append({name: array.copy() for name, array in get_state(model).items()})
        return on_test_split(model, site, forgiving=forgiving)

    monkeypatch.setattr("client.answers.round.tested", spy)
    content = train_round(request)
    (held,) = seen
    np.testing.assert_array_equal(held[CENTRE], received[CENTRE])
    own = request.site.train_inputs().mean(axis=0)
    np.testing.assert_allclose(wire.unpack_model(content)[CENTRE], own, rtol=1e-4, atol=1e-6)


def test_fedccfa_tells_features_under_the_centre_of_all(with_head: MakeConfig) -> None:
    request, received = sent_to(with_head(train__model="head-mlp"), "fedccfa")
    visit = request.visit()
    trained = request.method.train(visit)
    visit.load(trained.state | trained.extras[HEAD] | {CENTRE: received[CENTRE]})
    found, labels = features(visit.network, visit.site.train_inputs(), device=visit.device), visit.site.train_labels
    for label in np.unique(labels):
        expected = found[labels == label].mean(axis=0)
        np.testing.assert_allclose(trained.extras[PROTOTYPES]["means"][label], expected, rtol=1e-4, atol=1e-4)


# --- runs ------------------------------------------------------------------------------------------------------


def last(record: Record) -> RoundFinished:
    assert not record.of(SiteLeftOut)
    rounds = record.of(RoundFinished)
    return rounds[-1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "least"), [("head", 0.8), ("head-mlp", 0.5)])
def test_a_run_learns(with_head: MakeConfig, name: str, least: float) -> None:
    record, _ = run(with_head(train__model=name, rounds=5, partition__scheme="iid"))
    assert last(record).overall.accuracy > least


@pytest.mark.parametrize("name", HEADS)
def test_nearly_parallel_embeddings_are_learnt_from(with_head: MakeConfig, name: str) -> None:
    """Those of an untrained encoder have a mean cosine of 0.997."""
    untrained = {"encoder__name": "random:resnet10t", "encoder__image_size": 32}
    record, _ = run(with_head(train__model=name, rounds=5, partition__scheme="iid", **untrained))
    assert last(record).overall.accuracy > 0.6


def test_the_centre_that_comes_back_is_the_mean_of_all_training_samples(with_head: MakeConfig) -> None:
    config = with_head(rounds=1)
    record, _ = run(config)
    task = wire.Task(config.for_site(), 1, config.rounds, "0" * 8)
    rows = [data_of(Identity(f"{i:03d}", None, (i, 6), None), task, 1).train_inputs() for i in range(6)]
    np.testing.assert_allclose(last(record).models[0][CENTRE], np.concatenate(rows).mean(axis=0), rtol=1e-5)


def test_embeddings_come_from_the_cache(with_head: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"encoder__name": "random:resnet10t", "encoder__image_size": 32}
    run(with_head(rounds=1, **network))

    def never(self: Encoder, images: object) -> object:
        raise AssertionError("embedded again")

    monkeypatch.setattr(Encoder, "embed", never)
    last(run(with_head(rounds=2, **network))[0])


def test_only_the_head_travels(with_head: MakeConfig) -> None:
    _, grid = run(with_head(rounds=1))
    models = [wire.unpack_model(one.content) for one in [*grid.pushed, *grid.replies] if "model" in one.content]
    assert models
    shapes = {"head.weight": (10, 192), "head.bias": (10,), CENTRE: (192,)}
    assert all({name: array.shape for name, array in model.items()} == shapes for model in models)


def test_same_seed_same_bits(with_head: MakeConfig, tmp_path: Path) -> None:
    first = run_to_disk(with_head(), tmp_path / "a")
    second = run_to_disk(with_head(), tmp_path / "b", order_seed=3)
    assert (first / "metrics.csv").read_bytes() == (second / "metrics.csv").read_bytes()
    ours, theirs = (load_file(path / "models" / "group-0.safetensors") for path in (first, second))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("prior", ["site", "off"])
@pytest.mark.parametrize("method", ["fmcl", "fedavg", "scaffold", "local", "fedcm", "cfl"])
def test_a_head_goes_with_every_kind_of_method(with_head: MakeConfig, method: str, prior: str) -> None:
    record, _ = run(with_head(method=method, train__prior=prior, sites=4))
    first, *_ = record.of(RoundFinished)
    assert last(record).overall.accuracy > (0.6 if prior == "site" else 0.25)
    assert len(first.sites) == 4


def test_only_a_head_with_a_hidden_layer_goes_with_fedper(with_head: MakeConfig) -> None:
    """A linear one is all head, and nothing would travel."""
    last(run(with_head(method="fedper", train__model="head-mlp", sites=3))[0])
    with pytest.raises(SettingsError, match="'head' has nothing that fedper would send"):
        settle(with_head(method="fedper"))


def test_ifca_draws_starts_that_differ_although_a_head_starts_from_zeros(with_head: MakeConfig) -> None:
    config = with_head(method="ifca", cluster__k=2, sites=6, partition__scheme="disjoint", partition__groups=2)
    starts = [initial_state(config, number)["head.weight"] for number in range(3)]
    assert not starts[0].any()
    assert starts[1].any()
    assert not np.array_equal(starts[1], starts[2])
    np.testing.assert_array_equal(starts[1], initial_state(config, 1)["head.weight"])
    assert len(set(last(run(config)[0]).labels.values())) == 2


def test_personalisation_goes_with_heads(with_head: MakeConfig) -> None:
    last(run(with_head(personalise="select", sites=3, train__prior="site"))[0])


def test_drift_changes_what_a_head_reads(with_head: MakeConfig) -> None:
    config = with_head(sites=4, rounds=4, drift='[{"kind": "swap", "at": 3, "sites": ["000", "001"]}]')
    identity = Identity("000", None, (0, 4), None)
    task = wire.Task(config.for_site(), 1, config.rounds, "0" * 8)
    before, after = (data_of(identity, task, number) for number in (2, 3))
    assert before.train_inputs().shape[1] == 192
    assert before.train_inputs().shape != after.train_inputs().shape
    last(run(config)[0])


# --- kept models -----------------------------------------------------------------------------------------------


def held_at(root: Path, name: str, **changes: object) -> tuple[Config, Record]:
    nodes = {}
    for site in range(2):
        write_digits(root / f"data-{site}", [0, 1, 2], first=site * 20, count=15)
        paths = {"data-path": f"data-{site}", "models": f"models-{site}", "cache": f"cache-{site}"}
        nodes[site] = {"site": f"clinic-{site}", "policy": lenient()} | {
            key: str(root / path) for key, path in paths.items()
        }
        nodes[site] |= {key: str(value) for key, value in changes.pop(f"node-{site}", {}).items()}  # type: ignore[attr-defined]
    config = parse(
        {
            "method": "fedavg", "sites": 2, "rounds": 2, "data.source": "folder", "data.classes": "0,1,2",
            "encoder.name": "random:resnet10t", "encoder.image_size": 32, "train.model": name, "train.prior": "site",
            "round.deadline": 60.0, "round.start_timeout": 5.0,
        }
        | {key.replace("__", "."): value for key, value in changes.items()}
    )  # fmt: skip
    record = Record()
    conduct(LoopbackGrid(2, node_configs=nodes), config, [record])
    return config, record


@pytest.mark.federation
@pytest.mark.parametrize("name", HEADS)
def test_a_kept_head_predicts_from_images_as_the_site_was_tested_also_in_onnx(tmp_path: Path, name: str) -> None:
    config, record = held_at(tmp_path, name)
    told = last(record).sites["clinic-1"]
    path, folder = kept_model(tmp_path / "models-1"), tmp_path / "data-1"
    network, card = open_model(path)
    assert (card.input, card.network, card.projection) == ("embedding", name, 0)
    assert card.encoder == config.encoder
    site = load_site(Identity("clinic-1", folder, None, tmp_path), config.for_site())
    images = [folder / site.samples.name(row) for row in site.test.tolist()]
    found = [one for one in predict(network, card, read_images(images)) if isinstance(one, Prediction)]
    ours = np.stack([one.probabilities for one in found])
    assert (ours.argmax(axis=1) == site.test_labels).mean() == told.accuracy
    assert -np.log(ours[np.arange(len(ours)), site.test_labels]).mean() == pytest.approx(told.loss, rel=1e-5)

    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(path), "--onnx"]) == 0
    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
    assert onnx_input(card)[1].shape == (2, 32, 32, 3)
    side = read_images(images).images(np.arange(len(images)), 32, 3)
    theirs = session.run(None, {"pixels": side})[0]
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    np.testing.assert_allclose(session.run(None, {"pixels": side[:1]})[0], ours[:1], atol=1e-4)


def test_a_kept_head_names_the_weights_file_of_its_own_site(tmp_path: Path) -> None:
    """The run's path is that of another machine."""
    import timm

    weights = tmp_path / "here.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t", pretrained=False).state_dict(), weights)
    node = {"encoder-weights": weights}
    _, record = held_at(
        tmp_path, "head", encoder__name="timm:resnet10t", encoder__weights="/elsewhere/there.pth",
        **{"node-0": node, "node-1": node},
    )  # fmt: skip
    last(record)
    path = kept_model(tmp_path / "models-0")
    _, card = load_model(path)
    assert card.encoder is not None
    assert card.encoder.weights == str(weights)
    found = predict(*open_model(path), read_images(sorted((tmp_path / "data-0" / "0").iterdir())))
    assert all(isinstance(one, Prediction) for one in found)


# --- tables and settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "head", "head-mlp"])
def test_fmcl_groups_a_table_by_its_columns(tmp_path: Path, name: str) -> None:
    config = parse(
        wine_settings(
            tmp_path, method="fmcl", rounds=3, train__epochs=5, train__model=name, encoder__name=COLUMNS,
            train__prior="site",
        )
    )  # fmt: skip
    record, grid = run(config)
    assert last(record).overall.accuracy > 0.7
    assert record.of(GroupsFormed)
    asked = {one.metadata.message_id for one in grid.pushed if one.metadata.message_type == "query.signature"}
    answers = [one for one in grid.replies if one.metadata.reply_to_message_id in asked]
    prototypes = unpack_arrays(answers[0].content.array_records["signature"])["prototypes"]
    assert prototypes.shape == (2, 13)


@pytest.mark.parametrize("name", HEADS)
def test_a_kept_head_on_a_table_does_what_its_card_says(tmp_path: Path, name: str) -> None:
    config, record, _, _ = hold_run(
        tmp_path, method="fedavg", rounds=2, train__model=name, encoder__name=COLUMNS, train__prior="site"
    )
    last(record)
    agrees_with_its_card(kept_at(tmp_path, 0), tmp_path, 0, config)
    pytest.importorskip("onnx")
    assert main(["export", str(kept_at(tmp_path, 0)), "--onnx"]) == 0


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("method", ["fedavg", "dc-cfl"])
def test_settings_that_contradict_are_refused_with_a_sentence(
    tmp_path: Path, with_head: MakeConfig, name: str, method: str
) -> None:
    with pytest.raises(SettingsError, match=r"a table needs 'mlp', or a head with encoder.name = 'columns'"):
        settle(parse(wine_settings(tmp_path, method=method, train__model=name)))
    with pytest.raises(SettingsError, match=r"'columns' reads a table: set data.source"):
        settle(with_head(method=method, train__model=name, encoder__name=COLUMNS))
    settle(parse(wine_settings(tmp_path, method="fedavg", train__model=name, encoder__name=COLUMNS)))
    with pytest.raises(SettingsError, match="trains an mlp of its own"):
        settle(parse(wine_settings(tmp_path, method="dc-cfl", train__model=name, encoder__name=COLUMNS)))


def test_fmcl_on_a_table_says_which_encoder_it_needs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"on a table set encoder.name = 'columns'"):
        settle(parse(wine_settings(tmp_path, method="fmcl")))


def test_images_at_a_site_that_is_asked_for_columns_are_explained(with_head: MakeConfig) -> None:
    config = with_head()
    task = wire.Task(
        config.for_site().model_copy(update={"encoder": EncoderSettings(name=COLUMNS)}), 1, config.rounds, "0" * 8
    )
    site = data_of(Identity("000", None, (0, 6), None), task, 1)
    with pytest.raises(SettingsError, match="reads a table, and this site has images"):
        site.train_inputs()


@pytest.mark.parametrize(
    ("name", "encoder", "embedded"), [("head", "pixels", 1), ("head", COLUMNS, 0), ("mlp", "pixels", 0)]
)
def test_a_suite_embeds_once_for_heads_and_never_a_table(
    tmp_path: Path, with_head: MakeConfig, name: str, encoder: str, embedded: int
) -> None:
    config = with_head(train__model=name, sites=3)
    if encoder == COLUMNS:
        config = parse(wine_settings(tmp_path, method="fmcl", train__model=name, encoder__name=COLUMNS, sites=3))
    told: list[str] = []
    config = config.model_copy(update={"out": str(tmp_path / "run")})
    cell = Cell("data", "", "label", 0, config, None)
    prepare_cells([cell], embed=True, say=told.append)
    assert len(told) == embedded
