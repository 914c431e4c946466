"""What the page and the preview say of a grouping: after the test of chance, and after a rehearsal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.invented import Plot, write_run
from server.clustering import Chance, Rehearsed
from server.history.events import RehearsalDone
from server.report import read_run
from server.report.grouping_figures import grouping_figures
from server.report.grouping_words import choice_of_k, verdict
from server.report.record import RunRecord
from server.report.study import study
from server.report.tree_figures import choice_figure


def record_of(path: Path, chance: Chance | None, **plot: object) -> RunRecord:
    record = read_run(write_run(path / "run", Plot(rounds=0, **plot)))  # type: ignore[arg-type]
    assert record.grouping is not None
    labels = record.grouping.labels * (0 if plot.get("kinds") == 1 else 1)
    record.grouping = replace(record.grouping, chance=chance, labels=labels)
    return record


@pytest.mark.parametrize(
    ("chance", "plot", "answer", "words"),
    [
        (Chance(0.4, 0.2), {"spread": 0.1}, "no", "no more than chance"),
        (Chance(1e-9, 1e-9), {"spread": 0.1}, "yes", "p < 0.001"),
        (Chance(1e-9, 0.5), {"spread": 0.1}, "unsure", "train.prior"),
        (Chance(0.5, 1e-9), {"spread": 0.1}, "yes", "how the classes look"),
        (Chance(1e-9, 1e-9), {"spread": 0.1, "sites": 3}, "unsure", "3 sites"),
        (Chance(1e-9, 1e-9), {"kinds": 1, "spread": 0.0}, "no", "a single group was chosen all the same"),
        (Chance(0.5, 0.5), {"kinds": 1, "spread": 0.0}, "no", "learns from all of them"),
        (
            Chance(1e-9, 0.5, False),
            {"kinds": 1, "spread": 0.1},
            "no",
            "by more than chance (p = 0.50): one",
        ),
        (Chance(1e-9, 0.5, False), {"spread": 0.1}, "unsure", "cluster.k = 0 would leave one group"),
        (Chance(1e-9, 0.5, False, 4), {"spread": 0.1}, "unsure", "no class is shared"),
        (Chance(1e-9, 1e-9, False), {"spread": 0.1}, "yes", "holds when sites are left out"),
    ],
)
def test_the_verdict_follows_the_test_of_chance(
    tmp_path: Path, chance: Chance, plot: dict[str, object], answer: str, words: str
) -> None:
    record = record_of(tmp_path, chance, **plot)
    judged = verdict(record, study(record))
    assert judged is not None
    assert (judged.answer, words in judged.words) == (answer, True), judged.words


@pytest.mark.parametrize(
    ("chance", "plot", "answer", "words"),
    [
        (Chance(0.4, 0.2), {"spread": 0.1}, "unsure", "in the rehearsal 4 groups were clearly better than one"),
        (Chance(1e-9, 0.5), {"spread": 0.1}, "yes", "which the heads of the rehearsal took into account"),
        (Chance(1e-9, 1e-9), {"spread": 0.1}, "yes", "Yes, by rehearsal"),
        (Chance(1e-9, 1e-9), {"kinds": 1, "spread": 0.0}, "no", "more groups were not clearly better"),
        (Chance(1e-9, 0.5, False), {"spread": 0.1}, "unsure", "4 groups were clearly better than one, but the sites'"),
        (Chance(1e-9, 0.5, False), {"kinds": 1, "spread": 0.0}, "no", "every site's own shares are in its softmax"),
    ],
)
def test_after_a_rehearsal_none_is_recommended_and_its_choice_is_not_called_chance(
    tmp_path: Path, chance: Chance, plot: dict[str, object], answer: str, words: str
) -> None:
    record = record_of(tmp_path, chance, **plot)
    assert record.grouping is not None
    k = int(record.grouping.labels.max()) + 1
    record.rehearsal = RehearsalDone(Rehearsed((1, 4), (0.5, 0.3), (0, -0.3), (0, -0.1), k), k)
    judged = verdict(record, study(record))
    assert judged is not None
    assert (judged.answer, words in judged.words) == (answer, True), judged.words
    for untrue in ("would leave one group", "cluster.choice", "part what belongs together"):
        assert untrue not in judged.words


@pytest.mark.parametrize(
    ("rule", "window", "rehearsed", "words"),
    [
        ("guarded", (2, 3, 4, 5), False, "what the guarded rule chooses from, 2 to 5; the ring is the choice."),
        ("guarded", (1,), False, "what the guarded rule chooses from, 1 only; the ring is the choice."),
        ("guarded", (2, 3), True, "chooses from, 2 to 3; the ring is the choice of the rehearsal."),
        ("published", (3, 4), False, "window that the spread of the distances opens; the ring is the choice."),
        ("guarded", (), True, "speak of). The ring is the choice of the rehearsal."),
    ],
)
def test_the_band_is_what_the_rule_chose_from(
    tmp_path: Path, rule: str, window: tuple[int, ...], rehearsed: bool, words: str
) -> None:
    record = record_of(tmp_path, Chance(1e-9, 1e-9), spread=0.1)
    looked = study(record)
    assert record.grouping is not None
    assert looked is not None
    record.config = dict(record.config) | {"cluster": {"rule": rule}}
    if rehearsed:
        record.rehearsal = RehearsalDone(Rehearsed((1, 4), (0.5, 0.3), (0, -0.3), (0, -0.1), 4), 4)
    figure = choice_figure(record, replace(record.grouping, window=window), looked)
    assert figure.reading.endswith(words), figure.reading


def test_where_chance_is_not_ruled_out_no_draw_of_sites_has_groups(tmp_path: Path) -> None:
    record = record_of(tmp_path, Chance(0.5, 0.5), kinds=1, spread=0.3)
    looked = study(record)
    assert looked is not None
    assert looked.stability is not None
    assert set(looked.stability.group_counts) == {1}


def test_a_rehearsal_is_shown_beside_the_silhouette(tmp_path: Path) -> None:
    record = record_of(tmp_path, Chance(1e-9, 1e-9), spread=0.1)
    looked = study(record)
    assert looked is not None
    assert "rehearsal" not in {figure.name for figure in grouping_figures(record, looked)}
    outcome = Rehearsed((1, 2, 3, 12), (0.5, 0.3, 0.29, 0.6), (0, -0.3, -0.3, 0.05), (0, -0.1, -0.1, 0.2), 2)
    for by_silhouette, said in ((2, "chooses the same"), (3, "would choose 3, with a log loss of 0.290")):
        record.rehearsal = RehearsalDone(outcome, by_silhouette)
        words = choice_of_k(record, looked)
        assert words.startswith("2 groups, by rehearsal: log loss 0.300, 0.500 with one group; 3 would have 0.290")
        assert said in words
    figure = next(one for one in grouping_figures(record, looked) if one.name == "rehearsal")
    assert figure.rows[1] == (2, 0.3, -0.3, -0.1, 1)
    curve = figure.data[0]
    assert curve["y"] == pytest.approx([0.0, 0.2, 0.21, -0.1])
    # A bar reaches from the loss at its worst to that at its best: 2.5 to 97.5 %.
    assert curve["error_y"]["array"][1] == pytest.approx(0.1)
    assert curve["error_y"]["arrayminus"][3] == pytest.approx(0.1)
