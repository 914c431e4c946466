"""A site keeps its group's final model, and the model does there what the run said it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits

from cli.main import main
from client.data import load_site
from client.data.files import read_images
from client.data.samples import Fault
from client.identity import Identity, identify, models_folder
from client.onnx_export import export_onnx
from client.prediction import Prediction, open_model, predict
from client.training import normalise
from common.blend import Blend
from common.config import Config, SettingsError
from common.kept_model import ModelCard, load_model, save_model
from common.models import build, get_state, set_prior
from server.app import conduct
from server.history.events import RoundFinished, RunEnded, SiteLeftOut, StageStarted
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid
from tests.support.policies import lenient
from tests.support.runs import MakeConfig, Record, kept_model, made, run

SITES = 3
CLASSES = ("zero", "one", "two")


@dataclass
class Federation:
    """Three sites with folders of their own, after a run."""

    config: Config
    record: Record
    directory: Path
    node_configs: dict[int, dict[str, str]]

    def identity(self, site: int) -> Identity:
        return identify(self.node_configs[site] | {"partition-id": site, "num-partitions": SITES}, 100 + site)

    def model(self, site: int) -> Path:
        return kept_model(Path(self.node_configs[site]["models"]))


def write_images(folder: Path, site: int) -> None:
    digits = load_digits()
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for row in np.flatnonzero(digits.target == label)[site * 20 : site * 20 + 20]:
            pixels = (digits.images[row] * 15.9).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{row}.png")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return hold_run(tmp_path_factory.mktemp("federation"))


def hold_run(root: Path, spoil: Callable[[Path], None] = lambda root: None) -> Federation:
    from common.config import parse

    node_configs = {}
    for site in range(SITES):
        write_images(root / f"data-{site}", site)
        names = ("data-path", f"data-{site}"), ("models", f"models-{site}"), ("cache", f"cache-{site}")
        node_configs[site] = {"site": f"clinic-{site}", "policy": lenient()} | {
            key: str(root / name) for key, name in names
        }
    spoil(root)
    config = parse(
        {
            "method": "fedavg", "sites": SITES, "rounds": 2, "data.source": "folder", "data.image_size": 8,
            "data.channels": 1, "data.classes": ",".join(CLASSES), "train.model": "lenet5", "train.lr": 0.1,
            "round.deadline": 60.0, "round.start_timeout": 5.0,
        }
    )  # fmt: skip
    record, directory = Record(), made(root / "run")
    grid = LoopbackGrid(SITES, node_configs=node_configs)
    conduct(grid, config, [record, *run_listeners(directory)], directory=directory)
    return Federation(config, record, directory, node_configs)


def test_every_site_keeps_the_model_of_its_group(federation: Federation) -> None:
    ours = load_file(federation.directory / "models" / "group-0.safetensors")
    last = federation.record.of(RoundFinished)[-1]
    for site in range(SITES):
        state, card = load_model(federation.model(site))
        assert all(np.array_equal(state[name], ours[name]) for name in ours)
        assert (card.site, card.group, card.round, card.classes) == (f"clinic-{site}", 0, 2, CLASSES)
        assert (card.image_size, card.channels, card.network, card.method) == (8, 1, "lenet5", "fedavg")
        # The same in the run directory, on the card and in the folder's name.
        stamp = json.loads((federation.directory / "run.json").read_text())["stamp"]
        assert (card.run, federation.model(site).parent.name) == (stamp, f"run-{stamp}")
        assert "127.5" in card.preprocessing
        assert card.date
        assert card.trained_on == tuple(load_site(federation.identity(site), federation.config.for_site()).class_counts)
        assert card.test is not None
        metrics = last.sites[f"clinic-{site}"]
        assert (card.test.samples, card.test.accuracy, card.test.loss) == (
            metrics.count,
            metrics.accuracy,
            metrics.loss,
        )
        beside = federation.model(site).with_name("model.json").read_text()
        assert ModelCard.model_validate_json(beside) == card
        assert federation.model(site).parent.stat().st_mode & 0o077 == 0


def test_handing_out_is_told_as_a_stage(federation: Federation) -> None:
    assert [event.sites for event in federation.record.of(StageStarted) if event.stage == "keep"] == [SITES]
    assert federation.record.of(RunEnded)[0].outcome == "finished"
    assert json.loads((federation.directory / "summary.json").read_text())["seconds"]["keep"] >= 0


def test_predictions_are_those_of_the_sites_evaluation(federation: Federation) -> None:
    for site in range(SITES):
        data = load_site(federation.identity(site), federation.config.for_site())
        folder = Path(federation.node_configs[site]["data-path"])
        truth = {folder / data.samples.name(row): int(data.samples.labels[row]) for row in data.test.tolist()}
        model, card = open_model(federation.model(site))
        outcomes = list(predict(model, card, read_images(list(truth))))
        assert all(isinstance(one, Prediction) for one in outcomes)
        right = sum(one.label == truth[Path(one.name)] for one in outcomes if isinstance(one, Prediction))
        assert card.test is not None
        assert len(outcomes) == card.test.samples
        assert right / len(outcomes) == card.test.accuracy
        losses = [-np.log(one.probabilities[truth[Path(one.name)]]) for one in outcomes if isinstance(one, Prediction)]
        assert np.mean(losses) == pytest.approx(card.test.loss, rel=1e-6)


def test_predict_command(federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(federation.node_configs[0]["data-path"])
    (tmp_path / "torn.png").write_bytes(next((folder / "one").iterdir()).read_bytes()[:60])
    (tmp_path / "notes.txt").write_text("none")
    arguments = ["predict", str(federation.model(0)), str(folder / "zero"), str(tmp_path), str(tmp_path / "gone.png")]
    assert main([*arguments, "--csv"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "image,class,probability,p(zero),p(one),p(two)"
    assert len(lines) == 21
    for line in lines[1:]:
        name, label, top, *chances = line.split(",")
        assert Path(name).parent == folder / "zero"
        assert float(top) == max(map(float, chances))
        assert label == CLASSES[int(np.argmax(list(map(float, chances))))]
        assert sum(map(float, chances)) == pytest.approx(1, abs=1e-5)
    for skipped in ("torn.png", "notes.txt", "gone.png"):
        assert f"{skipped}: " in told.err
    assert "20 classified: " in told.err
    assert main(["predict", str(federation.model(0)), str(folder / "zero")]) == 0
    assert capsys.readouterr().out.count("\n") == 20
    assert main(["predict", str(federation.model(0)), str(tmp_path / "torn.png")]) == 1
    assert main(["predict", str(federation.model(0)), str(tmp_path / "notes.txt")]) == 1
    assert "no image in" in capsys.readouterr().err


def test_predict_warns_of_a_model_that_only_knows_the_frequent_class(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, card = load_model(federation.model(0))
    assert card.test is not None
    assert card.test.naming == pytest.approx(1 / 3)
    image = str(next((Path(federation.node_configs[0]["data-path"]) / "zero").iterdir()))
    for accuracy, words in ((0.3, "no better"), (1.0, "")):
        poor = card.model_copy(update={"test": card.test.model_copy(update={"accuracy": accuracy})})
        save_model(tmp_path / "model.safetensors", state, poor)
        assert main(["predict", str(tmp_path / "model.safetensors"), image]) == 0
        told = capsys.readouterr().err
        assert ("WARNING: do not rely on this model" in told) is bool(words)
        assert words in told
        assert ("the site trained on zero" in told) is bool(words)


def test_the_coordinators_copy_has_a_card_too(federation: Federation) -> None:
    _, card = load_model(federation.directory / "models" / "group-0.safetensors")
    overall = federation.record.of(RoundFinished)[-1].groups[0]
    assert (card.method, card.group, card.round, card.site, card.date) == ("fedavg", 0, 2, "", "")
    assert card.test is not None
    assert card.test.accuracy == overall.accuracy


def test_a_site_that_cannot_keep_its_model_is_named_and_the_run_ends(tmp_path: Path) -> None:
    held = hold_run(tmp_path, spoil=lambda root: (root / "models-1").write_text("a file where the folder should be"))
    left = held.record.of(SiteLeftOut)
    assert [(event.stage, event.site) for event in left] == [("keep", "clinic-1")]
    assert str(tmp_path) not in left[0].reason
    assert held.record.of(RunEnded)[0].outcome == "finished"
    assert held.model(0).exists()
    assert held.model(2).exists()
    assert (held.directory / "report.html").exists()


def test_simulated_sites_are_not_asked(small_config: MakeConfig) -> None:
    record, grid = run(small_config(rounds=1, method="fedavg"))
    assert not [event for event in record.of(StageStarted) if event.stage == "keep"]
    assert not [message for message in grid.pushed if message.metadata.message_type == "query.keep"]


def test_a_simulated_site_that_is_told_to_keeps_its_model(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(rounds=1, method="fedavg", sites=2)
    run(config, LoopbackGrid(2, node_configs={1: {"models": str(tmp_path)}}))
    assert load_model(kept_model(tmp_path))[1].site == "001"


def test_a_site_with_its_own_data_keeps_models_in_its_cache_by_default(tmp_path: Path) -> None:
    own = {"data-path": "/data", "cache": str(tmp_path), "site": "../../etc"}
    assert models_folder(identify(own, 7)) == tmp_path / "models" / "..%2F..%2Fetc"
    assert models_folder(identify({"partition-id": 0, "num-partitions": 2}, 7)) is None
    assert models_folder(identify(own | {"models": "/models"}, 7)) == Path("/models")


def test_files_that_are_no_model_are_refused(federation: Federation, tmp_path: Path) -> None:
    state, card = load_model(federation.model(0))
    cases: dict[str, str] = {}
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    cases["noise"] = "not a readable"
    save_file(state, tmp_path / "bare.safetensors")
    cases["bare"] = "has no model card"
    save_file(state, tmp_path / "odd.safetensors", metadata={"coterie": '{"network": "lenet5"}'})
    cases["odd"] = "is not valid"
    save_model(
        tmp_path / "other.safetensors",
        state,
        card.model_copy(update={"classes": ("a", "b"), "shares": (), "trained_on": ()}),
    )
    cases["other"] = "are not those of its card"
    save_model(tmp_path / "strange.safetensors", state, card.model_copy(update={"network": "vgg"}))
    cases["strange"] = "is not valid"
    cases["missing"] = "there is no model"
    for name, words in cases.items():
        with pytest.raises(SettingsError, match=words):
            open_model(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("network", ["lenet5", "resnet9", "resnet18", "mlp"])
def test_onnx_gives_the_same_probabilities(network: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    channels = 1 if network == "lenet5" else 3
    model = build(network, classes=3, channels=channels, image_size=16, seed=1).eval()
    card = ModelCard(network=network, classes=CLASSES, image_size=16, channels=channels, group=1, round=2)
    export_onnx(model, card, tmp_path / "model.onnx")
    save_model(tmp_path / "model.safetensors", get_state(model), card)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, channels), dtype=np.uint8)
    for index, picture in enumerate(pixels):
        Image.fromarray(picture[..., 0] if channels == 1 else picture).save(tmp_path / f"{index}.png")
    found = predict(*open_model(tmp_path / "model.safetensors"), read_images(sorted(tmp_path.glob("*.png"))))
    ours = np.stack([one.probabilities for one in found if not isinstance(one, Fault)])
    for count in (5, 1):
        theirs = session.run(None, {"pixels": pixels[:count]})[0]
        np.testing.assert_allclose(theirs, ours[:count], atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert about["classes"].split("\n") == list(CLASSES)
    assert ModelCard.model_validate_json(about["coterie"]) == card


@pytest.mark.parametrize("shares", [(), (0.7, 0.2, 0.1)])
def test_a_blend_predicts_and_exports_as_the_two_together(tmp_path: Path, shares: tuple[float, ...]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    parts = [build("lenet5", classes=3, channels=1, image_size=16, seed=seed).eval() for seed in (1, 2)]
    card = ModelCard(
        network="lenet5", classes=CLASSES, image_size=16, channels=1, group=1, round=2, kept="blend", blend=0.3,
        prior="site" if shares else "off", shares=shares,
    )  # fmt: skip
    save_model(tmp_path / "model.safetensors", get_state(Blend(*parts, 0.3)), card)  # type: ignore[call-arg]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), dtype=np.uint8)
    for index, picture in enumerate(pixels):
        Image.fromarray(picture[..., 0]).save(tmp_path / f"{index}.png")
    for part in parts:
        set_prior(part, np.array(shares) if shares else None)
    inputs = normalise(torch.from_numpy(pixels))
    group, own = (part(inputs).softmax(dim=1).detach().numpy() for part in parts)
    model, read = open_model(tmp_path / "model.safetensors")
    found = predict(model, read, read_images(sorted(tmp_path.glob("*.png"))))
    ours = np.stack([one.probabilities for one in found if not isinstance(one, Fault)])
    np.testing.assert_allclose(ours, 0.3 * group + 0.7 * own, atol=1e-6)
    export_onnx(model, read, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"pixels": pixels})[0], ours, atol=1e-5)


def test_a_blend_that_is_none_is_refused(tmp_path: Path) -> None:
    about = {"network": "lenet5", "classes": CLASSES, "image_size": 16, "channels": 1, "group": 0, "round": 1}
    for odd in ({"kept": "blend"}, {"blend": 0.5}, {"kept": "blend", "blend": 1.0}):
        with pytest.raises(ValueError, match="blend"):
            ModelCard(**about, **odd)  # type: ignore[arg-type]
    card = ModelCard(**about, kept="blend", blend=0.5)  # type: ignore[arg-type]
    alone = build("lenet5", classes=3, channels=1, image_size=16, seed=1)
    save_model(tmp_path / "one.safetensors", get_state(alone), card)
    both = get_state(Blend(alone, alone, 0.5))
    save_model(tmp_path / "more.safetensors", both | {"other.weight": np.zeros(1, np.float32)}, card)
    for name in ("one", "more"):
        with pytest.raises(SettingsError, match="are not those of its card"):
            open_model(tmp_path / f"{name}.safetensors")


def test_export_command(federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    out = tmp_path / "deployed.onnx"
    assert main(["export", str(federation.model(0)), "--onnx", "--out", str(out)]) == 0
    assert "uint8[n, 8, 8, 1]" in capsys.readouterr().out
    assert out.stat().st_size > 100_000
