"""`coterie init` says what is there, and what it writes works."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cli.main import main
from cli.start.inventory import take
from cli.start.recommendation import recommend
from common.config import SettingsError, load
from tests.support.federation import write_digits
from tests.support.tables import write_wine


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_sites(root: Path) -> Path:
    for place, (site, classes) in enumerate({"north": [0, 1], "south": [0, 1, 2], "east": [1, 2]}.items()):
        write_digits(root / site, classes, first=20 * place, count=15)
    return root


def test_a_folder_for_each_site_is_simulated_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sites(tmp_path / "data")
    assert main(["init", "data"]) == 0
    told = capsys.readouterr().out
    for words in (
        "found a folder with 105 images in 3 classes: 0 30, 1 45, 2 30",
        "grey images, 8 pixels",
        "of 3 sites: east 30, north 30, south 45",
        "wrote run.toml",
        "to beat: 42.9%",
        "coterie simulate run.toml",
    ):
        assert words in told
    config = load(tmp_path / "run.toml")
    assert (config.partition.scheme, config.sites, config.train.model) == ("own", 3, "head")
    assert main(["init", "data"]) == 2, "nothing is overwritten"
    assert main(["simulate", "run.toml", "--out", "out", "--set", "rounds=3"]) == 0
    clusters = json.loads((tmp_path / "out" / "clusters.json").read_text())["sites"]
    # Each has what is in its folder, under its own name.
    assert {name: one["train_samples"] + one["test_samples"] for name, one in clusters.items()} == {
        "east": 30, "north": 30, "south": 45,
    }  # fmt: skip
    assert clusters["north"]["class_counts"][2] == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["final"]["accuracy"] > summary["naming"]["accuracy"]
    assert summary["naming"]["verdict"] == "better"
    assert main(["simulate", "run.toml", "--out", "two", "--set", "sites=2"]) == 2
    assert "the data are those of 3 (east, north, south)" in capsys.readouterr().err


def test_a_folder_of_classes_is_dealt_out(tmp_path: Path) -> None:
    write_digits(tmp_path / "data", [0, 1], count=60)
    found = take(tmp_path / "data")
    assert (found.kind, found.sites, found.counts) == ("folder", {}, (60, 60))
    chosen = recommend(found)
    assert (chosen.sites, chosen.settings["partition.scheme"], chosen.baseline) == (3, "dirichlet", 0.5)
    assert recommend(found, 2).rounds <= chosen.rounds
    # Patients are not sites, though a class has a folder for each.
    for number in range(4):
        write_digits(tmp_path / "patients" / "ill" / f"patient {number}", [number], count=3)
        write_digits(tmp_path / "patients" / "well" / f"patient {9 - number}", [number], count=3)
    assert take(tmp_path / "patients").classes == ("ill", "well")


def write_manifest(root: Path) -> Path:
    write_sites(root / "images")
    with (root / "scans.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "site", "group"])
        for number, path in enumerate(sorted((root / "images").rglob("*.png"))):
            site, label, _ = path.relative_to(root / "images").parts
            writer.writerow([path.relative_to(root), label, site, f"patient {number // 2}"])
    return root / "scans.csv"


def write_arrays(root: Path) -> Path:
    digits = load_digits()
    sites = np.array(["north", "south"])[np.arange(200) % 2]
    np.savez(root / "x.npz", x=(digits.images[:200] * 15).astype(np.uint8), y=digits.target[:200], site=sites)
    return root / "x.npz"


def write_table(root: Path) -> Path:
    path = write_wine(root)
    rows = list(csv.reader(path.open()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", *rows[0]])
        writer.writerows([("north", "south", "east")[number % 3], *row] for number, row in enumerate(rows[1:]))
    return path


@pytest.mark.parametrize(
    ("write", "kind", "sites"),
    [(write_manifest, "manifest", 3), (write_arrays, "npz", 2), (write_table, "table", 3)],
)
def test_a_column_says_whose_a_sample_is(
    write: Callable[[Path], Path], kind: str, sites: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = take(write(tmp_path))
    assert (found.kind, len(found.sites)) == (kind, sites)
    assert main(["init", str(found.path), "--out", "mine.toml"]) == 0
    assert main(["simulate", "mine.toml", "--out", "out", "--set", "rounds=1"]) == 0
    clusters = json.loads((tmp_path / "out" / "clusters.json").read_text())["sites"]
    assert {name: one["train_samples"] + one["test_samples"] for name, one in clusters.items()} == found.sites
    assert ("mine-schema.toml" in capsys.readouterr().out) is (kind == "table")


def test_for_a_federation_no_path_and_no_number_of_sites_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_digits(tmp_path / "data", [0, 1], count=30)
    assert main(["init", "data", "--federation", "--out", "fed.toml"]) == 0
    config = load(tmp_path / "fed.toml")
    assert (config.data.path, config.data.classes, config.data.source) == ("", ("0", "1"), "folder")
    assert "sites" not in config.model_fields_set
    assert "coterie provision fed" in capsys.readouterr().out


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "one" / "only").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("none")
    for path, words in (("one", "1 class"), ("notes.txt", "neither a folder"), ("gone", "does not exist")):
        with pytest.raises(SettingsError, match=words):
            take(tmp_path / path)
