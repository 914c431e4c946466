"""Rows whose settings validation chooses: what is tried, on which samples, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from cli.suites.choosing import choose
from cli.suites.results import read_outcome, rows
from cli.suites.suite import Cell, cells, read_suite, trials
from cli.suites.tables import tables
from client.data import site
from client.identity import Identity
from common.config import SettingsError, parse
from tests.support.suites import finished_run, suite_file

SUITES = Path(__file__).parents[2] / "configs" / "suites"
GRID = """
title = "t"
seeds = [0, 1]
reference = "Local"
trial = {data.validate_share = 0.25, rounds = 2}
data = [{name = "digits", set = {data.image_size = 8, sites = 3, rounds = 3, train.model = "mlp"}}]
[[method]]
name = "fedprox"
grid = {train.lr = [0.1, 0.01], fedprox.mu = [1.0, 0.5]}
[[method]]
name = "local"
"""


@pytest.fixture
def tried(tmp_path: Path) -> list[Cell]:
    suite = read_suite(suite_file(tmp_path, GRID))
    return list(trials(suite, tmp_path, {"train.epochs": 2}, tmp_path / "out"))


def finish(cell: Cell, last: float) -> None:
    # What a run does best in the middle decides nothing.
    finished_run(cell, [0.1, 0.99, last], {"a": [0.1, 0.99, last]})


def test_every_combination_is_tried_on_training_samples_with_every_seed(tried: list[Cell]) -> None:
    known = [(one.seed, one.config.train.lr, one.config.of(type(one.config.methods.fedprox)).mu) for one in tried]  # type: ignore[attr-defined]
    assert known == [(seed, lr, mu) for seed in (0, 1) for lr in (0.1, 0.01) for mu in (1.0, 0.5)]
    assert {(c.config.data.validate_share, c.config.rounds, c.config.train.epochs) for c in tried} == {(0.25, 2, 2)}
    assert len({one.config.out for one in tried}) == 8
    assert str(tried[1]) == "digits, FedProx, seed 0, trial of lr = 0.1, mu = 0.5"


def test_the_best_mean_over_the_seeds_is_chosen_and_tested_on_test_samples(tmp_path: Path, tried: list[Cell]) -> None:
    suite = read_suite(suite_file(tmp_path, GRID))
    planned = list(cells(suite, tmp_path, {}, tmp_path / "out", choose(tried)))
    assert [cell.label for cell in planned] == ["Local", "Local"]
    lasts = {("0.1", 0): 0.9, ("0.1", 1): 0.2, ("0.01", 0): 0.6, ("0.01", 1): 0.6}
    for cell in tried:
        lr, mu = (str(value) for _, value in cell.chosen)
        finish(cell, lasts[lr, cell.seed] - (0.1 if mu == "1.0" else 0.0))
    found = choose(tried)
    assert found == {("digits", "FedProx"): {"train.lr": 0.01, "fedprox.mu": 0.5}}
    planned = list(cells(suite, tmp_path, {}, tmp_path / "out", found))
    assert [cell.label for cell in planned] == ["FedProx", "Local"] * 2
    best = planned[0].config
    assert (best.train.lr, best.rounds, best.data.validate_share) == (0.01, 3, 0.0)
    assert best.out == str(tmp_path / "out" / "digits" / "fedprox" / "seed-0")
    for cell in planned:
        finish(cell, 0.5)
    outcomes = [outcome for cell in planned if (outcome := read_outcome(cell)) is not None]
    _, (columns, lines) = tables(list(rows(outcomes, "Local")), "Local")
    assert [line[columns.index("chosen by validation")] for line in lines] == ["lr = 0.01, mu = 0.5", "–"]


def test_some_of_the_seeds_may_choose_for_all(tmp_path: Path) -> None:
    few = GRID.replace("seeds = [0, 1]", "seeds = [0, 1]\ntrial_seeds = [1]")
    suite = read_suite(suite_file(tmp_path, few))
    tried = list(trials(suite, tmp_path, {}, tmp_path / "out"))
    assert [cell.seed for cell in tried] == [1] * 4
    for number, cell in enumerate(tried):
        finish(cell, 0.1 * number)
    planned = cells(suite, tmp_path, {}, tmp_path / "out", choose(tried))
    assert [(cell.seed, cell.candidate) for cell in planned if cell.chosen] == [
        (seed, "lr = 0.01, mu = 0.5") for seed in (0, 1)
    ]
    with pytest.raises(SettingsError, match="trial_seeds has 2, which seeds has not"):
        read_suite(suite_file(tmp_path, few.replace("trial_seeds = [1]", "trial_seeds = [1, 2]")))


def test_half_the_trials_choose_nothing_and_the_first_of_equals_is_taken(tried: list[Cell]) -> None:
    for cell in tried[:-1]:
        finish(cell, 0.5)
    assert choose(tried) == {}
    finish(tried[-1], 0.5)
    assert choose(tried) == {("digits", "FedProx"): {"train.lr": 0.1, "fedprox.mu": 1.0}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("data.validate_share = 0.25, ", ""), "test samples choose nothing"),
        (("train.lr = [0.1, 0.01]", "train.lr = 0.1"), "needs a list"),
        (("train.lr = [0.1, 0.01]", "train.lr = []"), "needs a list"),
    ],
)
def test_a_grid_needs_lists_and_samples_to_choose_by(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_suite(suite_file(tmp_path, GRID.replace(*change)))


def test_the_command_tries_chooses_and_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate at which nothing is learnt against one at which something is."""
    text = GRID.replace("[0.1, 0.01], fedprox.mu = [1.0, 0.5]", "[1e-6, 0.1]").replace("seeds = [0, 1]", "seeds = [0]")
    path, out = suite_file(tmp_path, text), tmp_path / "out"
    assert main(["bench", str(path), "--out", str(out), "--jobs", "1", "--set", "rounds=1"]) == 0
    assert "| lr = 0.1 |" in capsys.readouterr().out
    assert main(["bench", str(path), "--out", str(out), "--tables", "--set", "rounds=1"]) == 0
    assert "| lr = 0.1 |" in capsys.readouterr().out


def test_validation_takes_training_samples_and_leaves_the_test_samples_alone() -> None:
    flat = {"data.image_size": 8, "sites": 4, "seed": 3, "partition.scheme": "classes"}
    identity = Identity("001", None, (1, 4), None)
    as_usual = site.load_site(identity, parse(flat).for_site())
    validating = site.load_site(identity, parse(flat | {"data.validate_share": 0.25}).for_site())
    np.testing.assert_array_equal(np.sort(np.concatenate([validating.train, validating.test])), as_usual.train)
    assert abs(len(validating.test) - 0.25 * len(as_usual.train)) <= 1
    assert set(np.unique(validating.test_labels)) == set(np.unique(as_usual.train_labels))


def test_a_site_with_data_of_its_own_decides_itself_what_is_tested(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="for simulated sites"):
        site.load_site(Identity("clinic", tmp_path, None, None), parse({"data.validate_share": 0.2}).for_site())


@pytest.mark.parametrize("path", sorted(SUITES.glob("*dccfl-table*.toml")), ids=lambda path: path.stem)
def test_dccfls_tables_are_as_in_the_paper(tmp_path: Path, path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text('label = "y"\nclasses = ["a", "b"]\n[[columns]]\nname = "x"\nminimum = 0.0\nmaximum = 1.0\n')
    suite, overrides = read_suite(path), {"data.table": str(schema)}
    planned = list(trials(suite, path.parent, overrides, tmp_path))
    whole = "quick" not in path.stem
    assert len(suite.seeds) == (10 if whole else 3)
    assert len(suite.data) == (3 if whole else 1)
    assert len(suite.setting) == (3 if "table2" in path.stem else 2)
    counts = {"FedAvg": 3, "FedProx": 12, "Ditto": 4, "FedClust": 9}
    assert suite.trial_seeds == ([] if whole else [0])
    per_row = (len(suite.seeds) if whole else 1) * len(suite.data) * len(suite.setting)
    assert {label: sum(one.label == label for one in planned) for label in counts} == {
        label: count * per_row for label, count in counts.items()
    }
    assert {one.config.rounds for one in planned} == {5}
    if "table2" in path.stem:
        assert all(len(entry.paper) == 9 for entry in suite.method)
    else:
        assert suite.reach == "DC-CFL"
