"""Suites: what is run, what is made of it, and what happens when something goes wrong."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon

from cli.main import main
from cli.simulation.one_process import OneProcessGrid
from cli.suites import drifted, overview, tables
from cli.suites.forking import Fork
from cli.suites.report import write_results
from cli.suites.results import Outcome, Row, Spread, best_round, read_outcome, rounds_to_reach, rows
from cli.suites.suite import Cell, Suite, cells, read_suite
from client.app import app
from common.config import SettingsError
from common.lock import alone
from server.app import conduct, initial_state
from server.listeners import run_listeners
from tests.support.runs import MakeConfig, made, run_to_disk
from tests.support.suites import finished_run, suite_file

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "configs" / "suites"
# Those of the papers' tables; the others ask when joining and grouping pay.
JOINING = sorted(path for kind in ("heads", "pixels", "tuned") for path in SUITES.glob(f"{kind}-*.toml"))
FEDCM = sorted(SUITES.glob("*fedcm-table*.toml"))
DCCFL = sorted(SUITES.glob("*dccfl-table*.toml"))
OTHERS = {*SUITES.glob("worlds*.toml"), SUITES / "slow-sites.toml", *DCCFL, *JOINING, *FEDCM}
PAPERS = sorted(set(SUITES.glob("*.toml")) - OTHERS)


SMALL = """
title = "Small"
seeds = [3, 4]
reference = "FMCL"
data = [{name = "digits", set = {data.image_size = 8}}]
[[method]]
name = "fmcl"
[[method]]
name = "fedavg"
paper = {digits = [50.0, 40.0, 60.0]}
[[method]]
name = "local"
"""


class TestSuite:
    def test_what_an_included_file_sets_stays_unless_it_is_set_again(self, tmp_path: Path) -> None:
        (tmp_path / "common.toml").write_text(f"set = {{rounds = 5, train.prior = 'off'}}\n{SMALL}")
        path = suite_file(tmp_path, 'include = "common.toml"\nseeds = [1]\n[set]\nrounds = 2\ntrain.lr = 0.5\n')
        config = next(cells(read_suite(path), tmp_path, {}, tmp_path / "out")).config
        assert (config.rounds, config.train.prior, config.train.lr, config.seed) == (2, "off", 0.5, 1)

    @pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
    def test_class_shares_are_off_in_the_papers_tables_but_for_rows_that_say_so(self, path: Path) -> None:
        planned = list(cells(read_suite(path), SUITES, {}, path.parent / "out"))
        with_shares = {cell.label for cell in planned if cell.config.train.prior == "site"}
        assert with_shares == {"FedAvg + prior", "FMCL (auto-K) + prior", "Local + prior"}

    def test_every_method_meets_every_seed_on_equal_terms(self, tmp_path: Path) -> None:
        path = suite_file(tmp_path, SMALL)
        planned = list(cells(read_suite(path), tmp_path, {"sites": 7}, tmp_path / "out"))
        assert [(cell.label, cell.seed) for cell in planned] == [
            (label, seed) for seed in (3, 4) for label in ("FMCL", "FedAvg", "Local")
        ]
        for seed in (3, 4):
            alike = [cell.config for cell in planned if cell.seed == seed]
            first = initial_state(alike[0])
            for config in alike:
                assert (config.seed, config.sites, config.data, config.partition) == (
                    seed, 7, alike[0].data, alike[0].partition,
                )  # fmt: skip
                assert all(np.array_equal(first[name], array) for name, array in initial_state(config).items())
        assert len({cell.config.out for cell in planned}) == 6

    def test_settings_overrule_each_other_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text("rounds = 1\nsites = 2\n[train]\nlr = 0.1\nmomentum = 0.1\nepochs = 9\n")
        path = suite_file(
            tmp_path,
            """
            title = "t"
            seeds = [0]
            data = [{name = "d", config = "base.toml", set = {sites = 3}}]
            setting = [{name = "slow", set = {train.lr = 0.3}}, {name = "fast", set = {train.lr = 0.4}}]
            set = {train.lr = 0.2, train.momentum = 0.2}
            [[method]]
            name = "fedavg"
            set = {train.momentum = 0.5}
            """,
        )
        slow, fast = cells(read_suite(path), tmp_path, {"rounds": 8}, tmp_path)
        assert [(c.config.train.lr, c.config.train.momentum) for c in (slow, fast)] == [(0.3, 0.5), (0.4, 0.5)]
        assert (slow.config.rounds, slow.config.sites, slow.config.train.epochs) == (8, 3, 9)
        assert (slow.name, str(fast)) == ("d/slow/fedavg/seed-0", "d, fast, FedAvg, seed 0")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (("seeds = [3, 4]", "seeds = []"), "seeds"),
            (("seeds = [3, 4]", "seeds = [3, 3]"), "twice"),
            (("seeds = [3, 4]", "sedes = [3]"), "sedes"),
            (('reference = "FMCL"', 'reference = "FLAME"'), "'FLAME' is none of FMCL, FedAvg, Local"),
            (('name = "local"', 'name = "fedavg"'), "two methods are called FedAvg"),
            (('name = "local"', 'name = "locale"'), "did you mean local"),
            (("image_size = 8", "image_seize = 8"), "did you mean data.image_size"),
            (
                ('name = "local"', 'name = "local"\nonly = ["digitals"]'),
                "only = digitals is none of the data sets digits",
            ),
            (("title", "= title"), "not valid TOML"),
            (("title", 'include = "missing.toml"\ntitle'), "cannot read"),
        ],
    )
    def test_mistakes_are_explained(self, tmp_path: Path, change: tuple[str, str], words: str) -> None:
        path = suite_file(tmp_path, SMALL.replace(*change))
        with pytest.raises(SettingsError, match=words):
            list(cells(read_suite(path), tmp_path, {}, tmp_path))

    def test_the_suite_of_worlds_has_them_all_and_local_in_each(self) -> None:
        path = SUITES / "worlds.toml"
        planned = list(cells(read_suite(path), path.parent, {}, Path("/out")))
        worlds = {(cell.config.partition.scheme, cell.config.partition.shift) for cell in planned}
        assert worlds == {("iid", "none"), ("dirichlet", "none"), ("iid", "devices"), ("dirichlet", "devices"),
                          ("iid", "concept")}  # fmt: skip
        assert {cell.config.train.model for cell in planned} == {"head", "lenet5"}
        assert {cell.config.train.prior for cell in planned} == {"site", "off"}
        for table in {cell.table for cell in planned}:
            methods = {cell.config.method for cell in planned if cell.table == table}
            assert methods >= {"fedavg", "fmcl", "fedcm", "ifca", "ditto", "local"}
            assert ("fedper" in methods) == table.startswith("LeNet5")
            assert "blend" in {cell.config.personalise for cell in planned if cell.table == table}

    def test_the_suite_of_the_default_has_every_kind_of_world_under_every_skew(self) -> None:
        path = SUITES / "worlds-default.toml"
        planned = list(cells(read_suite(path), path.parent, {}, Path("/out")))
        assert {(one.config.cluster.choice, one.config.train.prior) for one in planned} == {("silhouette", "site")}
        skews = {
            (c.config.partition.shift, c.config.partition.alpha)
            for c in planned
            if c.config.partition.scheme == "dirichlet"
        }
        assert skews == {(shift, alpha) for shift in ("none", "devices", "concept") for alpha in (0.1, 0.5)}
        assert {one.config.method for one in planned} == {"fedavg", "fmcl", "local"}

    @pytest.mark.parametrize("path", JOINING, ids=lambda path: path.stem)
    def test_suites_of_joining_have_local_and_the_choices_of_groups(self, path: Path) -> None:
        planned = list(cells(read_suite(path), path.parent, {}, Path("/out")))
        kind = path.stem.partition("-")[0]
        assert {cell.config.train.model == "head" for cell in planned} == {kind == "heads"}
        assert {cell.config.train.prior for cell in planned} == ({"site", "off"} if kind == "pixels" else {"site"})
        assert {cell.config.method for cell in planned} >= {"fmcl", "local"}
        choices = {cell.config.cluster.choice for cell in planned if cell.config.method == "fmcl"}
        assert choices == ({"rehearsal"} if kind == "tuned" else {"silhouette", "rehearsal"})

    @pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
    def test_shipped_suites_are_valid_and_have_every_row_of_the_paper(self, path: Path) -> None:
        suite = read_suite(path)
        planned = list(cells(suite, path.parent, {}, Path("/out")))
        assert {cell.config.method for cell in planned} >= {
            "fedavg", "fedprox", "cfl", "ifca", "pacfl", "pacfl-fm", "fecfl", "fecfl-fm",
            "fmcl-no-overlap", "fmcl-fixed-k", "fmcl", "local",
        }  # fmt: skip
        assert suite.reference == "FMCL (auto-K)"
        auto = [cell.config.cluster.k for cell in planned if cell.config.method == "fmcl"]
        assert set(auto) == {0}
        if path.stem != "digits":
            assert sum(cell.paper is not None for cell in planned) == 10 * len(suite.seeds)

    @pytest.mark.parametrize("path", FEDCM, ids=lambda path: path.stem)
    def test_fedcms_tables_are_drawn_from_all_sites_and_as_published(self, path: Path) -> None:
        suite = read_suite(path)
        planned = list(cells(suite, path.parent, {"data.path": "x"} if "quick" in path.stem else {}, Path("/out")))
        of = {(cell.config.train.draw, cell.config.train.prior, cell.config.cluster.rule) for cell in planned}
        assert of == {("all", "off", "published")}
        drawn = {round(cell.config.train.fraction * cell.config.sites) for cell in planned}
        assert drawn == ({4} if "quick" in path.stem else {10})
        if "table1" in path.stem:
            assert len({cell.label for cell in planned if cell.paper}) == 13
            assert {cell.config.test.held for cell in planned} == {True}
            first = planned[0]
            assert (first.label, first.data, first.setting, first.paper) == (
                ("FedAvg", "CIFAR-10", "pathological", (38.3,))
                if path.stem == "fedcm-table1"
                else ("FedAvg", "FMNIST", "pathological", (81.13,))
            )
        if "table3" in path.stem:
            assert {bool(cell.config.drift) for cell in planned if cell.setting == suite.stable} == {False}
            assert {bool(cell.config.drift) for cell in planned if cell.setting != suite.stable} == {True}
            assert sum(bool(entry.paper_loss) for entry in suite.method) == 7


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Suite, list[Cell], Path]:
    path = suite_file(tmp_path, SMALL)
    out = tmp_path / "out"
    suite = read_suite(path)
    return suite, list(cells(suite, tmp_path, {"rounds": 3}, out)), out


def cell_of(planned: list[Cell], label: str, seed: int) -> Cell:
    return next(cell for cell in planned if (cell.label, cell.seed) == (label, seed))


@pytest.fixture
def outcomes(planned: tuple[Suite, list[Cell], Path]) -> list[Outcome]:
    _, every, _ = planned
    a, b, c = [0.5, 0.5, 0.5], [0.9, 0.9, 0.9], [0.2, 0.2, 0.2]
    finished_run(cell_of(every, "FMCL", 3), [0.4, 0.9, 0.5], {"a": a, "b": b, "c": c})
    finished_run(cell_of(every, "FMCL", 4), [0.4, 0.5, 0.8], {"a": a, "b": b, "c": c})
    finished_run(cell_of(every, "FedAvg", 3), [0.1, 0.2, 0.3], {"a": b, "b": c, "c": a})
    finished_run(cell_of(every, "FedAvg", 4), [0.3, 0.2, 0.1], {"a": c, "b": c, "c": a})
    finished_run(cell_of(every, "Local", 3), [0.1, 0.1, 0.1], {"a": b, "b": b, "c": b})
    return [outcome for cell in every if (outcome := read_outcome(cell)) is not None]


class TestResults:
    def test_the_best_round_is_that_of_the_mean_curve(self, outcomes: list[Outcome]) -> None:
        """FMCL's seeds are best in rounds 2 and 3; their mean is best in round 2, at 0.7."""
        row = next(rows(outcomes, "FMCL"))
        assert (row.label, row.best_round, row.seeds) == ("FMCL", 2, (3, 4))
        assert row.best["accuracy"].mean == pytest.approx(0.7)
        assert row.best["accuracy"].deviation == pytest.approx(np.std([0.9, 0.5], ddof=1))
        assert row.best["macro_f1"].mean == pytest.approx(0.35)
        assert row.final["accuracy"].mean == pytest.approx(0.65)
        assert row.worst_tenth.mean == pytest.approx(0.7 / 4)
        assert math.isnan(row.best["auc"].mean)

    def test_ties_go_to_the_first_round(self, outcomes: list[Outcome]) -> None:
        assert best_round([outcome for outcome in outcomes if outcome.cell.label == "FedAvg"]) == 0

    def test_sites_that_would_be_better_off_elsewhere_are_counted(self, outcomes: list[Outcome]) -> None:
        fmcl, fedavg, local = rows(outcomes, "FMCL")
        # Local has finished seed 3 alone: there a and c do better than in FMCL.
        assert fmcl.better_alone == 2
        # 5 and 9 of 10 may be chance, 8 and 36 of 40 are not.
        assert fmcl.worse_off == 1
        # Under FedAvg a and c do better in seed 3, c alone in seed 4.
        assert fmcl.better_common == 1.5
        assert fedavg.better_common is None
        assert local.better_alone is None
        assert local.worse_off is None
        assert local.better_common == 0

    def test_the_paired_test_is_over_sites_and_seeds(self, outcomes: list[Outcome]) -> None:
        fmcl, fedavg, local = rows(outcomes, "FMCL")
        assert fmcl.p_value is None
        own, other = [0.9, 0.2, 0.5, 0.2, 0.2, 0.5], [0.5, 0.9, 0.2, 0.5, 0.9, 0.2]
        assert fedavg.p_value == pytest.approx(wilcoxon(np.subtract(own, other)).pvalue)
        assert local.p_value == pytest.approx(wilcoxon([0.4, 0, 0.7]).pvalue)

    def test_costs_are_means_over_sites_and_seeds(self, outcomes: list[Outcome]) -> None:
        row = next(rows(outcomes, "FMCL"))
        assert (row.sent, row.received, row.seconds, row.cpu_seconds) == (1.0, 4.0, 10.0, 7.0)

    def test_what_is_not_finished_or_has_no_rounds_is_left_out(
        self, planned: tuple[Suite, list[Cell], Path], outcomes: list[Outcome]
    ) -> None:
        assert len(outcomes) == 5
        assert read_outcome(cell_of(planned[1], "Local", 4)) is None

    def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(
        self, planned: tuple[Suite, list[Cell], Path], outcomes: list[Outcome]
    ) -> None:
        cell = cell_of(planned[1], "FMCL", 3)
        other = cell.config.model_copy(update={"rounds": 99})
        with pytest.raises(SettingsError, match=r"rounds = 99 \(was 3\)"):
            read_outcome(Cell(**vars(cell) | {"config": other}))

    def test_what_sites_made_for_themselves_is_a_row_of_its_own(self, tmp_path: Path) -> None:
        text = SMALL + '[[method]]\nname = "fmcl"\nlabel = "FMCL + select"\nset = {personalise = "select"}\n'
        every = list(cells(read_suite(suite_file(tmp_path, text)), tmp_path, {"rounds": 3}, tmp_path / "out"))
        found = dict.fromkeys(("accuracy", "macro_f1", "auc", "mean_site_accuracy", "worst_tenth_accuracy"), 0.75)
        sites = {"sites": {"a": {"kept": "local", "accuracy": 0.75}}}
        cell = cell_of(every, "FMCL + select", 3)
        finished_run(cell, [0.1, 0.1, 0.1], {"a": [0.1] * 3}, personalised=found | sites)
        outcome = read_outcome(cell)
        assert outcome is not None
        (row,) = rows([outcome], "FMCL")
        assert row.best_round is None
        assert row.best["accuracy"].mean == 0.75


class TestOverview:
    def rows_of(self, tmp_path: Path, accuracies: dict[str, float], **summary: object) -> list[Row]:
        tmp_path.mkdir()
        every = list(cells(read_suite(suite_file(tmp_path, SMALL)), tmp_path, {"rounds": 1}, tmp_path / "out"))
        for label, accuracy in accuracies.items():
            finished_run(cell_of(every, label, 3), [accuracy], {"a": [accuracy]}, **summary)
        return list(rows([outcome for cell in every if (outcome := read_outcome(cell)) is not None], "FMCL"))

    def test_gains_are_points_above_local_in_the_same_table(self, tmp_path: Path) -> None:
        one = self.rows_of(tmp_path / "one", {"FMCL": 0.9, "FedAvg": 0.7, "Local": 0.8}, ari=0.5)
        other = self.rows_of(tmp_path / "other", {"FMCL": 0.5, "Local": 0.6})
        found = overview.gains({"one": one, "other": other, "without Local": other[:1]})
        assert found is not None
        tables, labels, points = found
        assert (tables, labels) == (["one", "other"], ["FMCL", "FedAvg"])
        np.testing.assert_allclose(points, [[10, -10], [-10, np.nan]])
        assert overview.gains({"one": one}) is None
        assert [row.ari.mean for row in one] == [0.5] * 3

    def test_a_map_is_drawn_of_several_tables(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        one = self.rows_of(tmp_path / "one", {"FMCL": 0.9, "FedAvg": 0.7, "Local": 0.8}, ari=0.5)
        path = overview.draw({"one": one, "other": one}, "Worlds", tmp_path / "overview.png")
        assert path is not None
        assert path.read_bytes().startswith(b"\x89PNG")
        assert overview.draw({"one": one}, "Worlds", tmp_path / "none.png") is None

    def test_a_table_has_a_column_for_the_truth_where_there_is_one(self, tmp_path: Path) -> None:
        known = self.rows_of(tmp_path / "one", {"FMCL": 0.9, "Local": 0.8}, ari=0.25)
        (columns, lines), _ = tables.tables(known, "FMCL")
        assert (columns[2], lines[0][2]) == ("ARI", "0.25")
        assert all(len(line) == len(columns) for line in lines)
        assert not [column for column in columns if "paper" in column], "nobody published anything to hold against"
        assert "ARI" not in tables.tables(self.rows_of(tmp_path / "two", {"FMCL": 0.9}), "FMCL")[0][0]


class TestWhatAPaperMeans:
    """The same figures beside a paper's, whichever its own are."""

    def row(self, tmp_path: Path, text: str) -> tuple[list[Row], Suite]:
        suite = read_suite(suite_file(tmp_path, text + SMALL.replace("[50.0, 40.0, 60.0]", "50.0")))
        every = list(cells(suite, tmp_path, {"rounds": 2}, tmp_path / "out"))
        finished_run(cell_of(every, "FedAvg", 3), [0.9, 0.7], {"a": [0.8, 0.4], "c": [0.9, 0.6]})
        finished_run(cell_of(every, "Local", 3), [0.9, 0.7], {"a": [0.2, 0.3], "c": [0.1, 0.5]})
        return list(rows([found for cell in every if (found := read_outcome(cell)) is not None], "FMCL")), suite

    def test_an_accuracy_alone_may_be_that_of_the_last_round(self, tmp_path: Path) -> None:
        found, suite = self.row(tmp_path, 'measure = "last"\n')
        (columns, lines), _ = tables.tables(found, suite.reference, suite.measure)
        assert columns[-2:] == ["paper: accuracy, %", "last round, mean of sites − paper"]
        assert lines[0][-2:] == ["50.00", "+20.0"]
        assert lines[1][-2:] == ["–", "–"]

    def test_what_has_no_figure_after_its_training_is_tested_with_what_it_trained(self, tmp_path: Path) -> None:
        found, suite = self.row(tmp_path, 'measure = "held"\n')
        held = replace(found[0], held=Spread.of([0.75]))
        (_, lines), _ = tables.tables([held, found[0]], suite.reference, suite.measure)
        assert [line[-1] for line in lines] == ["+25.0", "+20.0"]

    def test_rounds_until_another_ones_accuracy_is_reached(self, tmp_path: Path) -> None:
        found, suite = self.row(tmp_path, 'reach = "Local"\n')
        _, (columns, lines) = tables.tables(found, suite.reference, suite.measure, suite.reach)
        assert columns[-1] == "rounds to reach Local"
        assert [line[-1] for line in lines] == ["1", "–"]
        worse = replace(found[0], curve=np.array([0.1, 0.2]))
        assert rounds_to_reach(worse, found[1]) is None

    @pytest.mark.parametrize("key", ["reach", "stable"])
    def test_a_name_that_is_nobodys_is_refused(self, tmp_path: Path, key: str) -> None:
        with pytest.raises(SettingsError, match=f"{key} = 'nobody' is none of"):
            self.row(tmp_path, f'{key} = "nobody"\n')


class TestDrifted:
    """Δ‰ = 1000 (stable − end) / stable: against the run without drift, not against the round before."""

    SUITE = SMALL.replace(
        "[[method]]",
        """
stable = "stable"
setting = [
    {name = "stable"}, {name = "swap", set = {drift = [{kind = "swap", at = 2, sites = 0.5}], rounds = 3, sites = 4}}
]
[[method]]""",
        1,
    )

    def test_stable_is_the_run_without_drift(self, tmp_path: Path) -> None:
        suite = read_suite(suite_file(tmp_path, self.SUITE))
        every = [cell for cell in cells(suite, tmp_path, {"rounds": 3, "sites": 4}, tmp_path / "out") if cell.seed == 3]
        for cell in every:
            if cell.label != "Local":
                curve = [0.5, 0.7, 0.8] if cell.setting == "stable" else [0.6, 0.3, 0.4]
                finished_run(cell, curve, {"a": curve, "c": curve})
        outcomes = [found for cell in every if (found := read_outcome(cell)) is not None]
        assert drifted.lines(outcomes, "stable", {"FMCL": 12}) == [
            ["FMCL", "swap", "80.0", "60.0", "30.0", "40.0", "500", "12"],
            ["FedAvg", "swap", "80.0", "60.0", "30.0", "40.0", "500", "–"],
        ]
        text, _ = write_results(suite, every, tmp_path / "out")
        assert "what drift costs" in text

    def test_half_a_pair_is_no_row(self, tmp_path: Path) -> None:
        suite = read_suite(suite_file(tmp_path, self.SUITE))
        every = list(cells(suite, tmp_path, {"rounds": 3, "sites": 4}, tmp_path / "out"))
        finished_run(every[0], [0.5, 0.5, 0.5], {"a": [0.5] * 3})
        assert drifted.lines([found for cell in every[:1] if (found := read_outcome(cell))], "stable", {}) == []


class TestTables:
    def test_all_files_are_written_and_say_what_is_missing(
        self, planned: tuple[Suite, list[Cell], Path], outcomes: list[Outcome]
    ) -> None:
        suite, every, out = planned
        text, drawn = write_results(suite, every, out)
        assert drawn
        assert "digits (5 of 6 runs so far)" in text
        assert "| FedAvg | 2 | 1 | 20.0 ± 14.1 | 10.0 ± 7.1 | – |" in text
        assert "50.00 / 40.00 / 60.00 | -30.0 / -30.0 / –" in text
        assert (out / "table.md").read_text().strip() == text
        assert r"20.0 $\pm$ 14.1" in (out / "table.tex").read_text()
        assert "<td>20.0 ± 14.1</td>" in (out / "table.html").read_text()
        assert (out / "curves-digits.png").read_bytes().startswith(b"\x89PNG")
        assert "FedAvg" in (out / "curves-digits.svg").read_text()
        assert "[the runs of seed 3 side by side: does joining pay, and for which site](runs-digits.html)" in text
        beside = (out / "runs-digits.html").read_text()
        assert 0 < beside.index(">FMCL<") < beside.index(">Local<")
        lines = list(csv.DictReader((out / "results.csv").open()))
        assert len(lines) == 5
        assert (lines[0]["label"], lines[0]["seed"], lines[0]["best_round"]) == ("FMCL", "3", "2")
        assert float(lines[0]["accuracy"]) == 0.9

    def test_labels_cannot_break_out_of_a_table(self) -> None:
        lines = [["<b>&_%"]]
        assert "&lt;b&gt;&amp;_%" in tables.html_table(["method"], lines)
        assert r"\&\_\%" in tables.latex(["method"], lines)

    def test_one_seed_has_no_deviation(self) -> None:
        assert math.isnan(Spread.of([0.5]).deviation)


def test_one_process_gives_the_same_bits_as_any_grid(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config()
    first = run_to_disk(config, tmp_path / "loopback")
    second = made(tmp_path / "one process")
    grid = OneProcessGrid(app, config.sites, threading.Event())
    conduct(grid, config, run_listeners(second), directory=second)
    for name in ("metrics.csv", "clusters.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_one_process_stops_between_two_sites(small_config: MakeConfig, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    folder = made(tmp_path / "run")
    config = small_config(method="fedavg")
    conduct(OneProcessGrid(app, config.sites, stop), config, run_listeners(folder), stop, folder)
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "interrupted"


def test_nobody_works_on_a_suite_twice(tmp_path: Path) -> None:
    with (
        alone(tmp_path / ".lock", "the suite") as lock,
        pytest.raises(SettingsError, match="the suite is in use by process"),
        alone(tmp_path / ".lock", "the suite"),
    ):
        assert lock < 0


@pytest.mark.federation
def test_a_process_that_forks_runs_outlives_them_and_names_their_ends(tmp_path: Path) -> None:
    with alone(tmp_path / ".lock", "the suite") as lock:
        fork = Fork(lock)
        pids: list[int] = []
        log = tmp_path / "words.log"
        assert fork.run(["methods"], log, pids.append)[0] == 0
        assert "fedavg" in log.read_text()
        code, cpu = fork.run(["simulate", str(tmp_path / "missing.toml")], log, pids.append)
        assert code == 2
        assert cpu < 20
        assert "cannot read the configuration" in log.read_text()
        # A run that is killed is named by its signal, and the next one begins all the same.
        assert fork.run(["watch", str(tmp_path)], log, lambda pid: os.kill(pid, signal.SIGKILL))[0] == -signal.SIGKILL
        assert fork.run(["methods"], log, pids.append)[0] == 0
        assert len(set(pids)) == 3
        fork.close()
        assert fork._process.wait(60) == 0
        with pytest.raises((OSError, ValueError)):
            fork.run(["methods"], log, pids.append)


@pytest.mark.federation
def test_a_failed_run_is_named_the_rest_goes_on_and_what_is_done_stays_done(
    tmp_path: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real runs in processes of their own: one whose sites all diverge in the warm-up, and one that is fine."""
    path = suite_file(
        tmp_path,
        f"""
        title = "Small"
        seeds = [0]
        data = [{{name = "digits", set = {{data.image_size = 8, data.channels = 1}}}}]
        set = {{sites = 3, rounds = 1, train.model = "mlp", cache = "{shared_cache}"}}
        [[method]]
        name = "fedcm"
        set = {{train.lr = 1e30, fedcm.warm_up = 1}}
        [[method]]
        name = "fedavg"
        """,
    )
    out = tmp_path / "out"
    assert main(["bench", str(path), "--out", str(out), "--jobs", "2"]) == 1
    text = capsys.readouterr().out
    assert "FAILED digits, FedCM, seed 0" in text
    assert "no site can take part" in text
    assert "| FedAvg | 1 | 1 |" in text
    before = (out / "digits" / "fedavg" / "seed-0" / "metrics.csv").stat().st_mtime_ns
    assert main(["bench", str(path), "--out", str(out)]) == 1
    assert "1 of 2 runs are there already" in capsys.readouterr().out
    assert (out / "digits" / "fedavg" / "seed-0" / "metrics.csv").stat().st_mtime_ns == before
    assert main(["bench", str(path), "--out", str(out), "--set", "rounds=2", "--tables"]) == 2
    assert "rounds = 2 (was 1)" in capsys.readouterr().err


def test_on_a_federation_the_server_is_asked_first_and_classes_must_be_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = suite_file(tmp_path, SMALL)
    fed = tmp_path / "fed"
    assert main(["provision", str(fed), "--server", "127.0.0.1:9", "--control", "127.0.0.1:9", "--sites", "a"]) == 0
    assert main(["bench", str(path), "--out", str(tmp_path / "out"), "--on", str(fed)]) == 2
    assert "no server answers at 127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.setattr("cli.commands.bench._sites_of", lambda folder: 3)
    folder = ["--set", "data.source=folder"]
    assert main(["bench", str(path), "--out", str(tmp_path / "out"), "--on", str(fed), *folder]) == 2
    assert "must agree on the class list" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_suite_is_checked_before_anything_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite_file(tmp_path, SMALL)
    assert main(["bench", str(path), "--out", str(tmp_path / "out"), "--set", "sites=1000"]) == 2
    assert "too few" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
