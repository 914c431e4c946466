"""Networks that are not ours at sites: weights, digests, permission, whole federations, and what is kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from flwr.app import Message
from safetensors.torch import save_file

from cli.main import main
from cli.simulation.preflight import prepare
from client import networks
from client.data.files import read_images
from client.identity import Identity, identify
from client.networks import frozen_digest, network_of, require_allowed
from client.prediction import Prediction, open_model, predict
from client.training import log_probabilities
from common import wire
from common.blend import Blend
from common.config import Config, SettingsError, parse
from common.kept_model import ModelCard, load_model, save_model
from common.models import get_state, set_prior, set_state
from common.own_network import NetworkError
from server.app import conduct, initial_state
from server.history.events import RoundFinished, SiteEnrolled, SiteLeftOut
from server.history.run_directory import open_run
from server.listeners import run_listeners
from server.methods import settle
from tests.support.federation import write_digits
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, kept_model, run

SOMEBODY = Identity("000", None, (0, 2), None)
OWN = "tests.common.test_own_network:Own"


def clinics(root: Path, count: int = 2, **nodes: Mapping[str, object]) -> dict[int, dict[str, str]]:
    """Sites of their own with a few digits each; what a site is told beyond that comes by its number."""
    told = {}
    for site in range(count):
        if not (root / f"data-{site}").exists():
            write_digits(root / f"data-{site}", [0, 1, 2], first=site * 20, count=10)
        paths = {"data-path": f"data-{site}", "models": f"models-{site}", "cache": "cache", "memory": f"memory-{site}"}
        told[site] = {"site": f"clinic-{site}"} | {key: str(root / path) for key, path in paths.items()}
        told[site] |= {key: str(value) for key, value in nodes.get(f"node_{site}", {}).items()}
    return told


def settings(**changes: object) -> Config:
    return parse(
        {
            "method": "fedavg", "sites": 2, "rounds": 2, "data.source": "folder", "data.classes": "0,1,2",
            "data.image_size": 32, "data.channels": 1, "encoder.name": "pixels", "encoder.image_size": 8,
            "train.model": "timm:test_efficientnet", "train.weights": "random", "train.tune": "last:1",
            "train.prior": "site", "train.batch_size": 8, "round.deadline": 60.0, "round.start_timeout": 5.0,
        }
        | {key.replace("__", "."): value for key, value in changes.items()}
    )  # fmt: skip


def held(root: Path, config: Config, **nodes: Mapping[str, object]) -> tuple[Record, LoopbackGrid]:
    return run(config, node_configs=clinics(root, config.sites, **nodes))


def weights_file(path: Path, architecture: str = "test_efficientnet", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    state = timm.create_model(architecture, pretrained=False).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def sent(grid: LoopbackGrid) -> list[set[str]]:
    return [set(wire.unpack_model(one.content)) for one in [*grid.pushed, *grid.replies] if "model" in one.content]


# --- federations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
@pytest.mark.parametrize("tune", ["head", "last:1", "lora:2", "all"])
def test_only_what_is_tuned_travels_and_of_fedper_no_head(tmp_path: Path, tune: str, method: str) -> None:
    config = settings(method=method, train__tune=tune, train__model="timm:test_vit")
    if (tune, method) == ("head", "fedper"):
        with pytest.raises(SettingsError, match="has nothing that fedper would send"):
            settle(config)
        return
    record, grid = held(tmp_path, config)
    assert not record.of(SiteLeftOut)
    finished = record.of(RoundFinished)
    assert len(finished) == 2
    assert finished[1].overall.loss != finished[0].overall.loss
    tuned = set(initial_state(config))
    expected = {name for name in tuned if method == "fedavg" or not name.startswith("head.")}
    assert sent(grid)
    assert all(names == expected for names in sent(grid))
    # What a site keeps has its own head as well, and is all that was tuned.
    assert set(load_model(kept_model(tmp_path / "models-1"))[0]) == tuned


def test_lora_trains_a_and_b(tmp_path: Path) -> None:
    config = settings(train__tune="lora:2", train__model="timm:test_vit", rounds=2)
    record, _ = held(tmp_path, config)
    start, end = initial_state(config), record.of(RoundFinished)[-1].models[0]
    for part in ("down", "up"):
        name = f"body.backbone.blocks.5.mlp.fc2.{part}"
        assert not np.array_equal(start[name], end[name])


def test_the_same_seed_gives_the_same_bits_and_a_resumed_run_too(tmp_path: Path) -> None:
    class Dies:
        def hear(self, event: object) -> None:
            if isinstance(event, RoundFinished) and event.round_number == 1:
                raise KeyboardInterrupt

    def carried(name: str, *more: object, resume: str = "never") -> Path:
        config = settings(train__tune="last:1", rounds=3, out=str(tmp_path / name), resume=resume)
        directory = open_run(config)
        grid = LoopbackGrid(2, node_configs=clinics(tmp_path))
        conduct(grid, config, [*run_listeners(directory), *more], directory=directory)  # type: ignore[list-item]
        return directory

    whole = carried("whole")
    with pytest.raises(KeyboardInterrupt):
        carried("cut", Dies())
    cut = carried("cut", resume="auto")
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    one, other = (load_model(path / "models" / "group-0.safetensors")[0] for path in (whole, cut))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    # Checkpoints hold what is tuned: 190 kB of 1.7 MB.
    tuned = sum(array.nbytes for array in one.values())
    sizes = [path.stat().st_size for path in (whole / "checkpoint").iterdir()]
    assert all(tuned < size < 2 * tuned + 50_000 for size in sizes)


# --- weights ---------------------------------------------------------------------------------------------------


def test_a_site_with_other_weights_is_named_and_left_out(tmp_path: Path) -> None:
    same, other = weights_file(tmp_path / "same.safetensors"), weights_file(tmp_path / "other.safetensors", seed=1)
    nodes = {f"node_{site}": {"network-weights": other if site == 1 else same} for site in range(3)}
    record, _ = held(tmp_path, settings(sites=3, train__weights="/elsewhere/there.pth", rounds=1), **nodes)
    assert [card.card.name for card in record.of(SiteEnrolled)] == ["clinic-0", "clinic-2"]
    (left,) = record.of(SiteLeftOut)
    assert "clinic-1: its weights of timm:test_efficientnet" in left.reason
    assert "are not those of the other sites" in left.reason
    assert "all sites need the same file" in left.reason
    assert len({card.card.weights for card in record.of(SiteEnrolled)}) == 1


def test_weights_that_change_during_a_run_are_noticed(tmp_path: Path) -> None:
    nodes = {f"node_{site}": {"network-weights": weights_file(tmp_path / f"{site}.safetensors")} for site in range(2)}

    def exchanged(index: int, request: Message, reply: Message) -> Message:
        if index == 1 and request.metadata.message_type == "train":
            weights_file(tmp_path / "1.safetensors", seed=9)
        return reply

    config = settings(train__weights="/elsewhere/there.pth")
    record, _ = run(config, node_configs=clinics(tmp_path, **nodes), fault=exchanged)
    assert "no longer those that it enrolled with" in record.reasons["train", "clinic-1"]
    assert ("train", "clinic-0") not in record.reasons


def test_a_site_without_the_file_is_told_what_to_do(tmp_path: Path) -> None:
    file = weights_file(tmp_path / "there.safetensors")
    config = settings(train__weights=str(file), rounds=1)
    record, _ = held(tmp_path, config, node_0={"network-weights": file})
    (left,) = record.of(SiteLeftOut)
    assert "set network_weights in site.toml to your copy of it" in left.reason
    assert [event.card.name for event in record.of(SiteEnrolled)] == ["clinic-0"]


def test_the_digest_is_of_the_weights_and_not_of_where_they_are(tmp_path: Path) -> None:
    def digest(weights: object, tune: str = "head", **identity: object) -> str:
        return frozen_digest(network_of(settings(train__weights=str(weights), train__tune=tune).for_site(), SOMEBODY))

    one, copy = weights_file(tmp_path / "one.safetensors"), tmp_path / "copy.pth"
    torch.save({"state_dict": timm.create_model("test_efficientnet").state_dict()}, tmp_path / "third.pth")
    torch.manual_seed(0)
    torch.save(timm.create_model("test_efficientnet").state_dict(), copy)
    assert digest(one) == digest(copy) == digest(copy, "all") == digest(copy, "lora:2")
    assert digest(one) != digest(tmp_path / "third.pth")
    assert digest("random") != digest(one)
    assert digest("random") == digest("random")


@pytest.mark.parametrize(
    ("weights", "said"),
    [("nowhere.pth", "train.weights = 'nowhere.pth' cannot be read"), ("README.md", "must be a .safetensors")],
)
def test_a_simulation_says_before_it_starts_what_is_wrong_with_the_weights(weights: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        prepare(settings(data__source="demo", data__classes="", train__weights=weights))


def test_the_packaged_weights_and_how_they_see_images() -> None:
    config = settings(train__model="timm:tf_efficientnet_lite0", train__weights="", train__tune="lora:1")
    network = network_of(config.for_site(), SOMEBODY).eval()
    scaled = network.body.scaled  # type: ignore[union-attr]
    images = torch.rand(1, 3, 32, 32) * 2 - 1
    torch.testing.assert_close(scaled(images), images)  # type: ignore[operator]
    assert len(frozen_digest(network)) == 64
    other = settings(train__model="timm:test_vit").for_site()
    scaled = network_of(other, SOMEBODY).body.scaled  # type: ignore[union-attr]
    mean, spread = (timm.create_model("test_vit").pretrained_cfg[name] for name in ("mean", "std"))
    expected = ((images + 1) / 2 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(spread).view(1, 3, 1, 1)
    torch.testing.assert_close(scaled(images), expected)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.tune": "last:1"}, "train.tune = 'last:1' goes with train.model = 'timm:<name>', not with 'resnet9'"),
        ({"train.weights": "hub"}, "train.weights = 'hub' goes with train.model = 'timm:<name>'"),
        ({"train.model": "python:a.b:c", "train.tune": "head"}, "not with 'python:a.b:c'"),
        ({"train.model": "timm:test_vit", "train.weights": "packaged"}, "goes with .*timm:tf_efficientnet_lite0"),
        ({"train.model": "timm:test_vit", "train.tune": "some"}, "train.tune = 'some' is not allowed"),
        ({"train.model": "timm:test_vit", "train.tune": "last:0"}, "train.tune = 'last:0' is not allowed"),
        ({"train.model": "timm:local-dir:/etc"}, "train.model = 'timm:local-dir:/etc' is not allowed"),
        ({"train.model": "timm:../weights"}, "is not allowed"),
        ({"train.model": "python:module"}, "is not allowed"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse(changes)


@pytest.mark.parametrize("name", ["timm:hf-hub:MahmoodLab/UNI", "timm:vit_small_patch14_dinov2.lvd142m"])
def test_names_of_the_hub_are_names(name: str) -> None:
    config = parse({"train.model": name, "train.tune": "lora:8", "encoder.name": name})
    assert (config.train.model, config.encoder.name) == (name, name)


# --- kept models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tune", ["last:1", "lora:2"])
def test_a_kept_model_predicts_as_it_was_tested_also_in_onnx(tmp_path: Path, tune: str) -> None:
    file = weights_file(tmp_path / "here.safetensors")
    nodes = {f"node_{site}": {"network-weights": file} for site in range(2)}
    record, _ = held(tmp_path, settings(train__tune=tune, train__weights="/elsewhere.pth"), **nodes)
    path = kept_model(tmp_path / "models-0")
    state, card = load_model(path)
    assert (card.network, card.tune, card.weights) == ("timm:test_efficientnet", tune, str(file))
    assert card.weights_digest == record.of(SiteEnrolled)[0].card.weights
    network, card = open_model(path)
    images = read_images(sorted((tmp_path / "data-0").rglob("*.png")))
    ours = np.stack([one.probabilities for one in predict(network, card, images) if isinstance(one, Prediction)])
    assert len(ours) == 30

    # By hand: the site's network, as it was trained.
    config = settings(train__tune=tune, train__weights=str(file))
    plain = network_of(config.for_site(), SOMEBODY).eval()
    set_state(plain, state)
    set_prior(plain, np.array(card.shares))
    pixels = images.images(np.arange(30), 32, 1)
    with torch.no_grad():
        expected = plain(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1).softmax(dim=1).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-4)

    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(path), "--onnx"]) == 0
    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"pixels": pixels})[0], ours, atol=1e-4)

    # Where the weights are gone, or are others, the user is told; another copy will do.
    copy = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(SettingsError, match="name your copy of its weights with --weights FILE"):
        open_model(path)
    with pytest.raises(SettingsError, match="not those that this model was tuned on"):
        open_model(path, weights=weights_file(tmp_path / "wrong.safetensors", seed=5))
    open_model(path, weights=copy)


@pytest.mark.parametrize("tune", ["last:1", "all", "lora:2"])
def test_a_kept_blend_of_a_tuned_backbone_predicts_as_the_two_did(tmp_path: Path, tune: str) -> None:
    config = settings(train__tune=tune)
    network, rng = network_of(config.for_site(), SOMEBODY), np.random.default_rng(0)
    parts = []
    for _ in range(2):
        # Every tensor is moved: a norm that is still zero would hide what lies below it.
        moved = {
            name: array + rng.uniform(0.05, 0.1, array.shape).astype(array.dtype) if array.dtype.kind == "f" else array
            for name, array in initial_state(config).items()
        }
        set_state(network, moved)
        parts.append(deepcopy(network))
    blend = Blend(parts[0], parts[1], 0.3)
    pixels = rng.integers(0, 256, (6, 32, 32, 1), dtype=np.uint8)
    expected, found = (
        log_probabilities(model, pixels, classes=3, batch_size=6, device=torch.device("cpu")).exp().numpy()
        for model in (blend, _saved_and_opened(tmp_path, config, blend, frozen_digest(network)))
    )
    assert np.ptp(expected, axis=0).max() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-4)


def _saved_and_opened(folder: Path, config: Config, blend: Blend, digest: str) -> torch.nn.Module:
    card = ModelCard(
        network=config.train.model, tune=config.train.tune, weights=config.train.weights, weights_digest=digest,
        seed=config.seed, classes=("0", "1", "2"), image_size=32, channels=1, group=0, round=1, kept="blend", blend=0.3,
    )  # fmt: skip
    save_model(folder / "model.safetensors", get_state(blend), card)
    return open_model(folder / "model.safetensors")[0]


# --- networks of the user's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedper", "scaffold", "fedcm", "pfedme", "per-fedavg-hf", "cfl-gp"])
def test_a_simulation_just_takes_a_network_of_the_users_own(small_config: MakeConfig, method: str) -> None:
    settings = {"method": method, "train__model": f"python:{OWN}", "train__prior": "site"}
    config = prepare(small_config(**settings, sites=2, train__lr=0.01, cluster__k=2 if method == "cfl-gp" else 0))
    record, grid = run(config)
    assert not record.of(SiteLeftOut)
    assert len(record.of(RoundFinished)) == 2
    assert all(("head.weight" in names) == (method != "fedper") for names in sent(grid))
    # What it drops is drawn by the seed, whatever was drawn before.
    torch.manual_seed(5)
    again, _ = run(config)
    assert [e.overall.loss for e in again.of(RoundFinished)] == [e.overall.loss for e in record.of(RoundFinished)]


def test_a_method_that_asks_for_features_refuses_a_network_of_the_users_own(small_config: MakeConfig) -> None:
    for changes in ({"method": "fedccfa"}, {"method": "fmcl", "train__rule": "fedccfa"}):
        with pytest.raises(SettingsError, match="fedccfa trains on the features below the head"):
            settle(small_config(train__model=f"python:{OWN}", migration__rule="off", **changes))


def test_a_site_refuses_a_network_that_it_does_not_allow_and_says_which_line_to_add(tmp_path: Path) -> None:
    config = settings(train__model=f"python:{OWN}", train__weights="", train__tune="", rounds=1)
    record, _ = held(tmp_path, config, node_0={"networks": f"a.b:c, {OWN}"})
    (left,) = record.of(SiteLeftOut)
    assert f'add the line networks = ["{OWN}"] to site.toml' in left.reason
    assert [event.card.name for event in record.of(SiteEnrolled)] == ["clinic-0"]
    path = kept_model(tmp_path / "models-0")
    with pytest.raises(SettingsError, match="if you trust that package, add --trust-network"):
        open_model(path)
    network, card = open_model(path, trusted=True)
    found = list(predict(network, card, read_images(sorted((tmp_path / "data-0" / "0").iterdir()))))
    assert all(isinstance(one, Prediction) for one in found)
    pytest.importorskip("onnx")
    assert main(["export", str(path), "--onnx", "--trust-network"]) == 0


def test_what_came_with_a_run_is_never_imported_at_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apps = tmp_path / "apps" / "coterie.1"
    apps.mkdir(parents=True)
    (apps / "shipped.py").write_text("raise SystemExit('the code of a stranger ran')\n")
    monkeypatch.syspath_prepend(str(apps))
    monkeypatch.setattr(networks, "bundles", lambda: tmp_path / "apps")
    site = identify({"site": "clinic", "data-path": "data", "networks": "shipped:factory"}, 1)
    with pytest.raises(NetworkError, match="the package shipped came with the run's own code"):
        require_allowed("python:shipped:factory", site)
    assert "shipped" not in sys.modules
    require_allowed("python:json:loads", identify({"networks": "json:loads"}, 1))
    require_allowed("resnet9", site)


def test_a_network_is_built_once(tmp_path: Path) -> None:
    one = settings().for_site()
    assert network_of(one, SOMEBODY) is network_of(one, SOMEBODY)
    assert set(get_state(network_of(one, SOMEBODY))) == set(initial_state(settings()))
