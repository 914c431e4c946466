"""Models of tables, of a single round and of a site's own making: kept, opened, used, and refused where of no use."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cli.main import main
from client.data import load_site
from client.data.files import read_images
from client.data.tables import read_columns, read_rows
from client.identity import Identity
from client.prediction import Prediction, open_model, predict
from common.config import Config, SettingsError, parse
from common.kept_model import ModelCard, load_model, save_model
from common.state import State
from common.table import read_table
from server.app import conduct
from server.history.events import ModelKept, RoundFinished, RunEnded, SiteLeftOut, SitesPersonalised
from server.listeners import run_listeners
from server.report.record import read_run
from tests.server.collaboration.test_one_round import WINES, OwnGrid, as_toml, export_all, make_own
from tests.support.loopback import LoopbackGrid
from tests.support.policies import lenient
from tests.support.runs import MakeConfig, Record, kept_model, made
from tests.support.tables import wine_settings, write_csv, write_wine

KINDS = {"barbera", "barolo", "grignolino"}


def hold_run(folder: Path, **changes: object) -> tuple[Config, Record, Path, OwnGrid]:
    """A run of three clinics with wines of their own."""
    make_own(folder)
    config = parse(wine_settings(folder, sites=WINES, **changes))
    record, directory = Record(), made(folder / "run")
    grid = OwnGrid(folder, WINES)
    conduct(grid, config, [record, *run_listeners(directory)], directory=directory)
    return config, record, directory, grid


def kept_at(folder: Path, site: int) -> Path:
    place = folder / f"site-{site}" / "cache" / "models" / f"clinic-{site}"
    return kept_model(place)


def predictions(model: Path, table: Path) -> dict[str, Prediction]:
    network, card = open_model(model)
    assert card.table is not None
    found = predict(network, card, read_rows(table, card.table))
    return {one.name: one for one in found if isinstance(one, Prediction)}


def agrees_with_its_card(model: Path, folder: Path, site: int, config: Config) -> None:
    """What predict says of the site's test rows is what the site's own evaluation found."""
    table = folder / f"site-{site}" / "wine.csv"
    data = load_site(Identity(f"clinic-{site}", table, None, folder), config.for_site())
    said = predictions(model, table)
    assert len(said) == len(data.samples)
    truth = {data.samples.name(row): int(data.samples.labels[row]) for row in data.test.tolist()}
    _, card = load_model(model)
    assert card.test is not None
    assert card.test.samples == len(truth)
    assert np.mean([said[name].label == label for name, label in truth.items()]) == card.test.accuracy
    losses = [-np.log(said[name].probabilities[label]) for name, label in truth.items()]
    assert np.mean(losses) == pytest.approx(card.test.loss, rel=1e-4)


# --- tables over many rounds -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config, Record, Path]:
    folder = tmp_path_factory.mktemp("fedavg")
    # Without class shares, which a site's copy has and the coordinator's has not.
    config, record, directory, _ = hold_run(folder, method="fedavg", rounds=2, train__epochs=4, train__prior="off")
    return folder, config, record, directory


def test_a_model_of_a_table_does_what_its_card_says(averaged: tuple[Path, Config, Record, Path]) -> None:
    folder, config, record, directory = averaged
    assert not record.of(SiteLeftOut)
    last = record.of(RoundFinished)[-1]
    for site in range(WINES):
        agrees_with_its_card(kept_at(folder, site), folder, site, config)
        _, card = load_model(kept_at(folder, site))
        assert (card.input, card.table, card.kept, card.note) == ("table", config.data.table, "group", "")
        assert "√12" in card.preprocessing
        assert card.test is not None
        assert card.test.accuracy == last.sites[f"clinic-{site}"].accuracy
    # The coordinator's copy of an ordinary run is as good as a site's.
    group = directory / "models" / "group-0.safetensors"
    ours, theirs = predictions(group, folder / "wine.csv"), predictions(kept_at(folder, 0), folder / "wine.csv")
    assert all(np.array_equal(ours[name].probabilities, theirs[name].probabilities) for name in theirs)


def test_predict_command_on_a_table(
    averaged: tuple[Path, Config, Record, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _, _ = averaged
    header, *rows = csv.reader((folder / "site-0" / "wine.csv").open(encoding="utf-8"))
    # Columns in another order, no label, two values missing.
    order = list(range(len(header) - 1))[::-1]
    few = [[row[place] for place in order] for row in rows[:5]]
    few[1][0] = few[2][0] = ""
    table = write_csv(tmp_path / "new.csv", [header[place] for place in order], few)
    model = str(kept_at(folder, 0))
    capsys.readouterr()
    assert main(["predict", model, str(table), "--csv"]) == 0
    told = capsys.readouterr()
    top, *lines = csv.reader(io.StringIO(told.out))
    assert top[:3] == ["row", "class", "probability"]
    assert [line[0] for line in lines] == [f"{table}: line {number}" for number in range(2, 7)]
    assert {line[1] for line in lines} <= KINDS
    assert f"{table}: column {header[order[0]]}: 2 of 5 values are missing" in told.err
    whole = predictions(kept_at(folder, 0), folder / "site-0" / "wine.csv")
    chances = [float(value) for value in lines[0][3:]]
    assert chances == pytest.approx(whole["line 2"].probabilities.tolist(), abs=1e-6)
    assert chances != pytest.approx([float(value) for value in lines[4][3:]], abs=1e-6)

    assert main(["predict", model, str(write_csv(tmp_path / "bare.csv", header[:3], [[1, 2, 3]]))]) == 2
    assert "has no column" in capsys.readouterr().err
    assert main(["predict", model, str(write_csv(tmp_path / "empty.csv", header, []))]) == 1
    assert "no row in" in capsys.readouterr().err
    assert main(["predict", model, str(tmp_path)]) == 2
    assert "cannot read the table" in capsys.readouterr().err


def test_parquet_is_read_too(averaged: tuple[Path, Config, Record, Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    folder, _, _, _ = averaged
    parquet.write_table(arrow_csv.read_csv(folder / "wine.csv"), tmp_path / "wine.parquet")
    one, other = (predictions(kept_at(folder, 0), path) for path in (folder / "wine.csv", tmp_path / "wine.parquet"))
    assert all(np.array_equal(one[name].probabilities, other[name].probabilities) for name in one)


def test_onnx_of_a_table_gives_the_same_probabilities(
    averaged: tuple[Path, Config, Record, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folder, config, _, _ = averaged
    model, out = kept_at(folder, 0), tmp_path / "model.onnx"
    assert main(["export", str(model), "--onnx", "--out", str(out)]) == 0
    assert "rows float32[n, 13]" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert config.data.table is not None
    rows = read_rows(folder / "wine.csv", config.data.table).rows
    ours = np.stack([one.probabilities for one in predictions(model, folder / "wine.csv").values()])
    for count in (len(rows), 1):
        theirs = session.run(None, {"rows": rows[:count]})[0]
        np.testing.assert_allclose(theirs, ours[:count], atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert ModelCard.model_validate_json(about["coterie"]).table == config.data.table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": None}, "the schema of a table"),
        ({"input": "image"}, "the schema of a table"),
        ({"input": "embedding", "table": None}, "an encoder if it reads embeddings"),
        ({"network": "lenet5"}, "'lenet5' does not read table"),
        ({"classes": ("a", "b")}, "are not those of its card|is not valid"),
    ],
)
def test_cards_that_contradict_themselves_are_refused(
    averaged: tuple[Path, Config, Record, Path], tmp_path: Path, change: dict[str, object], words: str
) -> None:
    state, card = load_model(kept_at(averaged[0], 0))
    save_model(tmp_path / "odd.safetensors", state, card.model_copy(update=change))
    with pytest.raises(SettingsError, match=words):
        open_model(tmp_path / "odd.safetensors")


def test_a_row_is_called_as_its_file_calls_it(tmp_path: Path) -> None:
    path = write_wine(tmp_path)
    table = read_table(str(tmp_path / "wine.toml"))
    assert table is not None
    first = table.columns[0].name
    assert read_rows(path, table).name(0) == "line 2"
    assert float(read_rows(path, table, first).name(0)) == float(read_columns(path, [first])[first][0])


# --- a single round --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dc-cfl", "dc"])
def test_a_site_keeps_the_model_of_its_answer(tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    config, record, directory, grid = hold_run(tmp_path, method=method)
    kinds = [message.metadata.message_type for message in grid.pushed]
    assert kinds == ["query.collaboration"] * WINES + ["evaluate.collaboration"] * WINES
    assert not record.of(SiteLeftOut)
    assert sorted(event.site for event in record.of(ModelKept)) == [f"clinic-{site}" for site in range(WINES)]
    assert len(read_run(directory).kept) == WINES
    last = record.of(RoundFinished)[-1]
    for site in range(WINES):
        model = kept_at(tmp_path, site)
        agrees_with_its_card(model, tmp_path, site, config)
        _, card = load_model(model)
        assert card.test is not None
        assert card.test.accuracy == last.sites[f"clinic-{site}"].accuracy
        assert card.group == last.labels[f"clinic-{site}"]
        assert (card.site, card.method, card.table) == (f"clinic-{site}", method, config.data.table)
        assert model.parent.name == f"run-{card.run}"
        assert "private map" in card.note
        assert model.stat().st_mode & 0o077 == 0
    for job in (["predict", str(tmp_path / "wine.csv")], ["export", "--onnx"]):
        group = directory / "models" / "group-0.safetensors"
        capsys.readouterr()
        assert main([job[0], str(group), *job[1:]]) == 2
        said = capsys.readouterr().err
        assert "cannot be used by itself" in said
        assert "collab apply --out" in said
    _, card = load_model(directory / "models" / "group-0.safetensors")
    assert (card.input, card.table, card.site, card.method) == ("integrated", None, "", method)


def test_a_site_that_cannot_keep_the_model_is_named_and_its_figures_count(tmp_path: Path) -> None:
    make_own(tmp_path)
    (tmp_path / "site-1" / "cache").mkdir()
    (tmp_path / "site-1" / "cache" / "models").write_text("a file where the folder should be")
    record = Record()
    conduct(OwnGrid(tmp_path, WINES), parse(wine_settings(tmp_path, sites=WINES, train__epochs=1)), [record])
    assert record.reasons.keys() == {("keep", "clinic-1")}
    assert len(record.of(RoundFinished)[0].sites) == WINES
    assert record.of(RunEnded)[0].outcome == "finished"
    assert sorted(event.site for event in record.of(ModelKept)) == ["clinic-0", "clinic-2"]


def test_by_files_the_model_is_of_the_same_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    settings = wine_settings(tmp_path, sites=WINES)
    run_file = as_toml(tmp_path, settings)
    out = tmp_path / "post"
    assert main(["collab", "solve", str(run_file), *export_all(tmp_path, run_file), "--out", str(out)]) == 0
    model = tmp_path / "model.safetensors"
    site, answer = tmp_path / "site-1" / "site.toml", out / "answers" / "clinic-1.answer"
    assert main(["collab", "apply", str(site), str(answer), "--out", str(model)]) == 0
    assert "it stays at the site" in capsys.readouterr().out
    agrees_with_its_card(model, tmp_path, 1, parse(settings))
    assert model.stat().st_mode & 0o077 == 0
    assert main(["predict", str(model), str(site.parent / "wine.csv")]) == 0
    assert capsys.readouterr().out.count("\n") == len((site.parent / "wine.csv").read_text().splitlines()) - 1
    with pytest.raises(SettingsError, match="by itself"):
        open_model(out / "models" / "group-0.safetensors")
    gone = tmp_path / "nowhere" / "model.safetensors"
    assert main(["collab", "apply", str(site), str(answer), "--out", str(gone)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_on_embeddings_predict_goes_through_the_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits, names = load_digits(), ("zero", "one", "two")
    nodes = {}
    for site in range(2):
        for label, name in enumerate(names):
            place = tmp_path / f"data-{site}" / name
            place.mkdir(parents=True)
            for row in np.flatnonzero(digits.target == label)[site * 20 : site * 20 + 20]:
                Image.fromarray((digits.images[row] * 15.9).astype(np.uint8)).save(place / f"{row}.png")
        (tmp_path / "secret").write_text("5" * 64)
        paths = {"data-path": f"data-{site}", "models": f"models-{site}", "cache": f"cache-{site}"}
        nodes[site] = {"site": f"clinic-{site}", "anchor-secret": str(tmp_path / "secret"), "policy": lenient()}
        nodes[site] |= {key: str(tmp_path / path) for key, path in paths.items()}
    config = parse(
        {
            "method": "dc-cfl", "sites": 2, "rounds": 1, "data.source": "folder", "data.input": "embedding",
            "data.classes": ",".join(names), "encoder.name": "pixels", "encoder.image_size": 8,
            "collaboration.projection": 16, "collaboration.anchor_rows": 40, "train.model": "mlp", "train.lr": 0.05,
            "train.epochs": 10, "round.deadline": 60.0, "round.start_timeout": 5.0,
        }
    )  # fmt: skip
    record = Record()
    conduct(LoopbackGrid(2, node_configs=nodes), config, [record])
    assert not record.of(SiteLeftOut)
    model = kept_model(tmp_path / "models-0")
    network, card = open_model(model)
    assert (card.input, card.projection, card.table) == ("embedding", 16, None)
    folder = tmp_path / "data-0"
    held = load_site(Identity("clinic-0", folder, None, tmp_path), config.for_site())
    truth = {folder / held.samples.name(row): int(held.samples.labels[row]) for row in held.test.tolist()}
    found = [one for one in predict(network, card, read_images(list(truth))) if isinstance(one, Prediction)]
    assert card.test is not None
    assert len(found) == card.test.samples
    assert np.mean([one.label == truth[Path(one.name)] for one in found]) == card.test.accuracy
    losses = [-np.log(one.probabilities[truth[Path(one.name)]]) for one in found]
    assert np.mean(losses) == pytest.approx(card.test.loss, rel=1e-4)
    assert main(["export", str(model), "--onnx"]) == 2
    assert "the encoder pixels" in capsys.readouterr().err


# --- models of a site's own making -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["finetune", "select", "blend"])
def test_a_site_that_personalises_keeps_what_it_chose(tmp_path: Path, mode: str) -> None:
    config, record, directory, grid = hold_run(
        tmp_path, method="fedavg", rounds=1, train__epochs=1, train__lr=0.01, personalise=mode
    )
    (told,) = record.of(SitesPersonalised)
    assert not [message for message in grid.pushed if message.metadata.message_type == "query.keep"]
    assert sorted(event.site for event in record.of(ModelKept)) == [f"clinic-{site}" for site in range(WINES)]
    group, _ = load_model(directory / "models" / "group-0.safetensors")
    for site in range(WINES):
        name = f"clinic-{site}"
        agrees_with_its_card(kept_at(tmp_path, site), tmp_path, site, config)
        state, card = load_model(kept_at(tmp_path, site))
        assert card.kept == told.kept[name]
        assert card.test is not None
        assert card.test.accuracy == told.sites[name].accuracy
        assert same(state, group) == (card.kept == "group")
    # One epoch at a low rate is not the best a site can do: the test would say nothing if all kept the group's.
    assert set(told.kept.values()) - {"group"}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_who_made_no_model_of_its_own_gets_the_groups(small_config: MakeConfig, tmp_path: Path) -> None:
    """A site whose answer never came is handed the group's model, and only that site."""
    config = small_config(method="fedavg", personalise="finetune", rounds=1, sites=2)

    def silent(index: int, request: object, reply: object) -> object:
        from flwr.app import Message

        assert isinstance(request, Message)
        lost = index == 1 and request.metadata.message_type == "query.personalise"
        return None if lost else reply

    nodes = {index: {"models": str(tmp_path / str(index))} for index in range(2)}
    limits = config.round.model_copy(update={"deadline": 2.0})
    grid = LoopbackGrid(2, node_configs=nodes, fault=silent)  # type: ignore[arg-type]
    conduct(grid, config.model_copy(update={"round": limits}), [Record()])
    handed = [message.metadata.dst_node_id for message in grid.pushed if message.metadata.message_type == "query.keep"]
    assert handed == [101]
    assert load_model(kept_model(tmp_path / "1"))[1].kept == "group"


def test_the_wire_carries_whether_a_model_is_stored() -> None:
    from common import wire
    from common.metrics import from_logits

    statistics = from_logits(np.array([[0.5, 0.5]]), np.array([1]), np.array([0.7]))
    good = wire.Evaluation(statistics, 0.1, "local", stored=True)
    for stored in (True, False):
        content = wire.pack_evaluation(replace(good, stored=stored))
        assert wire.unpack_evaluation(content, classes=2, limit_mb=1).stored is stored
    content["evaluation"]["stored"] = 2
    with pytest.raises(wire.WireError, match="stored"):
        wire.unpack_evaluation(content, classes=2, limit_mb=1)
