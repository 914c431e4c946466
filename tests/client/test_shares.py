"""A kept model carries its site's class shares, and can be told others where it is used elsewhere."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.main import main
from client.data import load_site
from client.data.files import read_images
from client.identity import Identity
from client.prediction import Prediction, open_model, predict
from common.config import Config, SettingsError, parse
from common.kept_model import ModelCard, load_model, save_model
from common.models import build, get_state
from common.prior import class_shares
from server.app import conduct
from server.history.events import RoundFinished, SiteLeftOut
from server.listeners import run_listeners
from tests.support.federation import write_digits
from tests.support.loopback import LoopbackGrid
from tests.support.policies import lenient
from tests.support.runs import Record, kept_model, made

# Site 1 has never seen a 2.
COUNTS = {0: {0: 20, 1: 6, 2: 10}, 1: {0: 6, 1: 24}}


@dataclass
class Held:
    """Two sites with folders of their own, after a run with the prior on."""

    root: Path
    config: Config
    record: Record

    def model(self, site: int) -> Path:
        return kept_model(self.root / f"models-{site}")

    @property
    def group(self) -> Path:
        return self.root / "run" / "models" / "group-0.safetensors"

    def images(self, site: int) -> list[Path]:
        return sorted((self.root / f"data-{site}").rglob("*.png"))


def hold_run(root: Path, prior: str) -> Held:
    nodes = {}
    for site, counts in COUNTS.items():
        for label, count in counts.items():
            write_digits(root / f"data-{site}", [label], first=site * 30, count=count)
        paths = {"data-path": f"data-{site}", "models": f"models-{site}", "cache": f"cache-{site}"}
        nodes[site] = {"site": f"clinic-{site}", "policy": lenient()} | {
            key: str(root / path) for key, path in paths.items()
        }
    config = parse(
        {
            "method": "fedavg", "sites": 2, "rounds": 2, "data.source": "folder", "data.image_size": 8,
            "data.channels": 1, "data.classes": "0,1,2", "train.model": "lenet5", "train.lr": 0.05,
            "train.prior": prior, "round.deadline": 60.0, "round.start_timeout": 5.0,
        }
    )  # fmt: skip
    record, directory = Record(), made(root / "run")
    conduct(LoopbackGrid(2, node_configs=nodes), config, [record, *run_listeners(directory)], directory=directory)
    assert not record.of(SiteLeftOut)
    return Held(root, config, record)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return hold_run(tmp_path_factory.mktemp("prior"), "site")


def chances(model: Path, shares: str, images: list[Path]) -> np.ndarray:
    found = predict(*open_model(model, shares), read_images(images))
    return np.stack([one.probabilities for one in found if isinstance(one, Prediction)])


def weighted(balanced: np.ndarray, shares: object) -> np.ndarray:
    product: np.ndarray = balanced * np.array(shares)
    return product / product.sum(axis=1, keepdims=True)


def test_the_card_carries_the_shares_of_the_sites_training_part(held: Held) -> None:
    for site in COUNTS:
        data = load_site(
            Identity(f"clinic-{site}", held.root / f"data-{site}", None, held.root), held.config.for_site()
        )
        _, card = load_model(held.model(site))
        assert card.prior == "site"
        assert card.shares == pytest.approx(class_shares(data.class_counts).tolist(), rel=1e-12)
        beside = json.loads(held.model(site).with_name("model.json").read_text())
        assert beside["shares"] == list(card.shares)
    assert data.class_counts[2] == 0


def test_the_coordinators_copy_knows_nobodys_shares(held: Held) -> None:
    _, card = load_model(held.group)
    assert (card.prior, card.shares) == ("site", ())


def test_what_the_site_keeps_predicts_as_it_was_tested(held: Held) -> None:
    last = held.record.of(RoundFinished)[-1]
    for site in COUNTS:
        folder = held.root / f"data-{site}"
        data = load_site(Identity(f"clinic-{site}", folder, None, held.root), held.config.for_site())
        images = [folder / data.samples.name(row) for row in data.test.tolist()]
        found = chances(held.model(site), "own", images)
        loss = -np.log(found[np.arange(len(images)), data.test_labels]).mean()
        assert loss == pytest.approx(last.sites[f"clinic-{site}"].loss, rel=1e-6)
        assert (found > 0).all()


def test_own_uniform_and_a_file_weigh_the_same_scores(held: Held, tmp_path: Path) -> None:
    images = held.images(0)[::4]
    balanced = chances(held.model(1), "uniform", images)
    np.testing.assert_array_equal(balanced, chances(held.group, "own", images))
    own = load_model(held.model(1))[1].shares
    np.testing.assert_allclose(chances(held.model(1), "own", images), weighted(balanced, own), rtol=1e-4)
    # Counts will do: only their proportions matter.
    (tmp_path / "clinic.toml").write_text('1 = 2.5\n"0" = 5\n2 = 2.5\n')
    found = chances(held.model(1), str(tmp_path / "clinic.toml"), images)
    np.testing.assert_allclose(found, weighted(balanced, [0.5, 0.25, 0.25]), rtol=1e-4)
    assert np.abs(found - balanced).max() > 0.01


def test_predict_command_with_shares(held: Held, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(held.images(0)[0])
    printed = {}
    for shares in ("own", "uniform"):
        assert main(["predict", str(held.model(1)), image, "--csv", "--shares", shares]) == 0
        _, row = csv.reader(io.StringIO(capsys.readouterr().out))
        printed[shares] = [float(value) for value in row[3:]]
    own = load_model(held.model(1))[1].shares
    expected = weighted(np.array([printed["uniform"]]), own)[0].tolist()
    assert printed["own"] == pytest.approx(expected, abs=1e-5)
    assert main(["predict", str(held.model(1)), image, "--csv"]) == 0
    assert [float(value) for value in capsys.readouterr().out.splitlines()[1].split(",")[3:]] == printed["own"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "takes own, uniform or a file; .* cannot be read: No such file"),
        ("0 = 1\n1 = 1\n3 = 1", "must name exactly the classes 0, 1, 2"),
        ("0 = 1\n1 = 1", "must name exactly the classes"),
        ("0 = 1\n1 = 1\n2 = 0", "numbers above 0"),
        ("0 = 1\n1 = 1\n2 = inf", "it holds inf, which is no number"),
        ("0 = 1\n1 = 1\n2 = nan", "it holds nan, which is no number"),
        ("0 = 1\n1 = 1\n2 = true", "numbers above 0"),
        ("0: 1", "is no table of shares: Expected"),
    ],
)
def test_shares_of_no_use_are_explained(held: Held, tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "shares.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        open_model(held.model(0), str(path))
    with pytest.raises(SettingsError, match="cannot be read"):
        open_model(held.model(0), str(tmp_path))


def test_a_model_without_the_prior_takes_no_shares_and_tells_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = hold_run(tmp_path, "off")
    _, card = load_model(plain.model(0))
    assert (card.prior, card.shares) == ("off", ())
    image = plain.images(0)[0]
    np.testing.assert_array_equal(chances(plain.model(0), "own", [image]), chances(plain.group, "own", [image]))
    capsys.readouterr()
    assert main(["predict", str(plain.model(0)), str(image), "--shares", "uniform"]) == 2
    assert "train.prior = 'site': this one has learnt its shares" in capsys.readouterr().err


def test_shares_that_do_not_fit_the_classes_are_refused() -> None:
    about = {"network": "mlp", "image_size": 8, "channels": 1, "group": 0, "round": 1, "prior": "site"}
    for shares in [(0.5,), (0.5, 0.0), (1.5, 0.5)]:
        with pytest.raises(ValueError, match="one for each class"):
            ModelCard(classes=("a", "b"), shares=shares, **about)  # type: ignore[arg-type]


def test_a_site_of_a_single_class_can_read_its_own_card(tmp_path: Path) -> None:
    card = ModelCard(
        network="mlp", classes=("a",), image_size=8, channels=1, group=0, round=1, prior="site", shares=(1.0,)
    )
    model = build("mlp", classes=1, channels=1, image_size=8, seed=0)
    save_model(tmp_path / "one.safetensors", get_state(model), card)
    assert open_model(tmp_path / "one.safetensors")[1] == card


@pytest.mark.parametrize("shares", ["own", "uniform", "file"])
def test_onnx_has_the_shares_in_the_graph(held: Held, tmp_path: Path, shares: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    (tmp_path / "file.toml").write_text("0 = 1\n1 = 1\n2 = 8\n")
    option = str(tmp_path / "file.toml") if shares == "file" else shares
    out = tmp_path / "model.onnx"
    assert main(["export", str(held.model(1)), "--onnx", "--shares", option, "--out", str(out)]) == 0
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    images = held.images(0)[::6]
    pixels = np.stack([np.array(Image.open(path))[..., None] for path in images])
    theirs = session.run(None, {"pixels": pixels})[0]
    np.testing.assert_allclose(theirs, chances(held.model(1), option, images), atol=1e-5)
    card = ModelCard.model_validate_json(session.get_modelmeta().custom_metadata_map["coterie"])
    # Whoever exports for use elsewhere does not mean to tell the site's own.
    expected = {"own": load_model(held.model(1))[1].shares, "uniform": (), "file": (0.1, 0.1, 0.8)}[shares]
    assert card.shares == pytest.approx(expected)
