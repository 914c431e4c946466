"""Does joining pay, class by class, and what differs between groups: words and figures are those of the counts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.invented import CLASSES, Plot, write_run
from common.metrics import Metrics
from server.clustering import GroupDifference
from server.history.events import SitesPersonalised
from server.report import page, read_run
from server.report.beside_local import joining, joining_overall, joining_words, local_run
from server.report.class_figures import by_group, recall_rows, weak_rows
from server.report.confusions import recalls, weakest
from server.report.difference_words import difference_rows, difference_words
from server.report.record import RunRecord
from server.report.study import study
from server.report.words import sentences
from tests.server.report.test_report import figures, words_of


def scored(record: RunRecord, **hits: tuple[int, int]) -> RunRecord:
    """The run with other results in its last round: hits and samples by site."""
    last = record.rounds[-1]
    sites = {site: Metrics(right / count, math.nan, math.nan, 0.1, count) for site, (right, count) in hits.items()}
    record.rounds[-1] = replace(last, sites=sites, labels=dict.fromkeys(sites, 0))
    return record


@pytest.fixture
def together(tmp_path: Path) -> RunRecord:
    record = read_run(write_run(tmp_path / "fmcl", Plot(sites=4, kinds=2, rounds=1)))
    return scored(record, a=(90, 100), b=(50, 100), c=(6, 7), d=(0, 10))


@pytest.fixture
def local(tmp_path: Path) -> RunRecord:
    record = read_run(write_run(tmp_path / "local", Plot(sites=4, kinds=2, rounds=1, method="local")))
    return scored(record, a=(60, 100), b=(80, 100), c=(3, 7), e=(5, 5))


def test_each_site_is_judged_by_the_interval_of_the_difference(together: RunRecord, local: RunRecord) -> None:
    a, b, c = joining(together, local)
    assert (a.site, a.verdict, b.site, b.verdict) == ("a", "better together", "b", "better alone")
    # Three more of seven are 43 points, and may be chance.
    assert (c.site, c.verdict, c.samples) == ("c", "cannot tell", 7)
    assert c.difference == pytest.approx(3 / 7)
    total = joining_overall(together, local)
    assert total is not None
    assert (total.together, total.alone, total.samples) == (146 / 207, 143 / 207, 207)
    assert total.verdict == "cannot tell"


def test_the_headline_names_local(together: RunRecord, local: RunRecord) -> None:
    told = sentences(together, study(together), [local])
    assert told[2] == joining_words(together, local)
    assert "Sites on their own (Local) classify 69.1% correctly, together 70.5%" in told[2]
    assert "whether joining pays cannot be told" in told[2]
    assert "Of 3 sites, 1 is better together by more than noise, 1 better alone (b), and 1 cannot tell" in told[2]
    assert len(sentences(together, None, [])) == len(told) - 1
    text = page([together, local])
    assert told[2] in words_of(text)
    assert [row[-1] for row in figures(text)["joining"]["rows"]] == ["better alone", "better together", "cannot tell"]
    for verdict in ("better alone", "better together", "cannot tell"):
        assert f">{verdict}<" in text


@pytest.mark.parametrize(("here", "words"), [(95, "joining brings 15.0 points"), (60, "joining costs 20.0 points")])
def test_what_joining_brings_or_costs_is_told_in_points(
    here: int, words: str, together: RunRecord, local: RunRecord
) -> None:
    told = joining_words(scored(together, a=(here, 100)), scored(local, a=(80, 100)))
    assert words in told


def test_a_local_run_is_not_beside_itself_and_must_have_a_result(together: RunRecord, local: RunRecord) -> None:
    assert local_run(local, [local]) is None
    assert local_run(together, [together]) is None
    assert local_run(together, [together, local]) is local
    local.rounds.clear()
    assert local_run(together, [local]) is None
    assert "Together or alone" not in page([together, local])


def test_sites_that_no_two_runs_tested_say_nothing(together: RunRecord, local: RunRecord) -> None:
    assert "no site was tested in both" in joining_words(scored(together, a=(1, 2)), scored(local, b=(1, 2)))
    page([together, local])


def test_the_sites_own_models_count_where_the_run_made_some(together: RunRecord, local: RunRecord) -> None:
    own = {"a": Metrics(0.6, 0, 0, 0, 100), "b": Metrics(0.99, 0, 0, 0, 100)}
    together.personalised = SitesPersonalised("select", dict.fromkeys(own, "local"), own["a"], own, 0.8, 0.6)
    a, b = joining(together, local)
    assert (a.verdict, b.verdict) == ("cannot tell", "better together")


# --- classes ---------------------------------------------------------------------------------------------------


def test_recall_and_the_weakest_class_are_those_of_the_counts() -> None:
    confusion = np.array([[30, 0, 0], [4, 5, 1], [0, 1, 0]])
    first, second, third = recalls(confusion)
    assert (first.share, first.mistaken) == (1.0, -1)
    assert (second.share, second.count, second.mistaken) == (0.5, 10, 0)
    assert second.low < 0.5 < second.high
    # One sample that is missed tells less than five of ten.
    assert (third.share, third.high > second.high) == (0.0, True)
    found = weakest(confusion)
    assert found is not None
    assert found.label == 1
    assert weakest(np.diag([3, 4])) is None
    assert recalls(np.zeros((2, 2), np.int64)) == []


def test_the_page_has_every_group_and_class_that_was_tested(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", Plot(sites=12, kinds=3, rounds=2)))
    groups = by_group(record)
    assert sum(int(confusion.sum()) for confusion in groups.values()) == 12 * 25
    assert record.last is not None
    for site, confusion in record.confusions.items():
        assert np.trace(confusion) == round(record.last.sites[site].accuracy * 25)
    rows = recall_rows(record, groups)
    assert sum(int(str(row[2])) for row in rows) == 12 * 25
    assert all(row[4] <= row[3] <= row[5] for row in rows)  # type: ignore[operator]
    weak = weak_rows(record)
    assert {row[0] for row in weak} == {
        site for site, confusion in record.confusions.items() if np.trace(confusion) < 25
    }
    text = page([record])
    drawn = figures(text)
    for group, confusion in groups.items():
        cells = np.array([row[1:] for row in drawn[f"confusion-{group}"]["rows"]])
        assert cells.sum() == confusion.sum()
        assert np.trace(cells) == np.trace(confusion)
    assert "Which class a site is bad at" in words_of(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be used"),
        ("[]", "holds no sites"),
        ('{"round": 2, "sites": {"000": [[0, 0]]}}', "3 whole numbers"),
        ('{"round": 2, "sites": {"000": [[0, 0, 1.5]]}}', "3 whole numbers"),
        ('{"round": 2, "sites": {"000": 7}}', "no list of counts"),
        (json.dumps({"round": 2, "sites": {"000": [[0, CLASSES, 1]]}}), "not of 10 classes"),
        ('{"round": 2, "sites": {"000": [[0, 0, -1]]}}', "negative or too large"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(content: str, words: str, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=4, kinds=2, rounds=2))
    (directory / "confusions.json").write_text(content)
    record = read_run(directory)
    assert any("confusions.json" in note and words in note for note in record.notes)
    assert record.confusions == {}
    assert "Classes" not in words_of(page([record]))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"x": []}, "no number"),
        ({"0": [[0, 256, 1, 0]]}, "not of 10 classes"),
        ({"0": [[CLASSES, 0, 1, 0]]}, "not of 10 classes"),
        ({"0": [[0, 0, 1]]}, "4 whole numbers"),
        ({"0": [[0, 0, 2**60, 0]]}, "too large"),
    ],
)
def test_damaged_scores_leave_out_the_probabilities_alone(
    groups: dict[str, object], words: str, tmp_path: Path
) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=4, kinds=2, rounds=2))
    (directory / "scores.json").write_text(json.dumps({"round": 2, "groups": groups}))
    record = read_run(directory)
    assert any("scores.json" in note and words in note for note in record.notes)
    assert "Probabilities" not in words_of(page([record]))


def test_counts_of_another_round_and_runs_without_are_passed_over(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=4, kinds=2, rounds=2))
    kept = json.loads((directory / "confusions.json").read_text())
    assert kept["round"] == 2
    (directory / "confusions.json").write_text(json.dumps(kept | {"round": 1}))
    assert read_run(directory).confusions == {}
    (directory / "confusions.json").unlink()
    assert read_run(directory).notes == []


# --- what differs between the groups ---------------------------------------------------------------------------

SHARES = GroupDifference(0, 1, 0.8, 0.05, 0.04, 0.03)
IMAGES = GroupDifference(0, 2, 0.06, 0.05, 0.7, 0.03)
BOTH = GroupDifference(1, 2, 0.8, 0.05, 0.7, math.nan)
NEITHER = GroupDifference(1, 3, 0.06, 0.05, 0.04, 0.03)
UNKNOWN = GroupDifference(2, 3, 1.0, 0.05, math.nan, math.nan)


@pytest.mark.parametrize(
    ("pair", "words", "follows"),
    [
        (SHARES, "Which classes they have, not how samples of a class look", "train.prior = 'site') handle that"),
        (IMAGES, "How samples of the same class look, or what the labels mean", "Groups are for that"),
        (BOTH, "Both which classes they have and how samples of a class look", "groups are for the second"),
        (NEITHER, "Neither the classes nor their samples differ", "One model for all (FedAvg)"),
        (UNKNOWN, "That cannot be told: the groups have no class in common", "train.prior"),
    ],
)
def test_the_words_say_what_differs_and_what_follows(pair: GroupDifference, words: str, follows: str) -> None:
    told = difference_words([pair])
    assert told.startswith(words)
    assert follows in told
    assert "pairs of groups" not in told
    if pair is IMAGES:
        assert "by 67% of what different classes do" in told


def test_the_most_frequent_kind_is_told_with_how_often_it_is() -> None:
    assert "(so 2 of 3 pairs of groups)" in difference_words([SHARES, SHARES, IMAGES])
    assert difference_words([SHARES, SHARES, IMAGES]).startswith("Which classes")
    assert [row[0] for row in difference_rows([SHARES, UNKNOWN, IMAGES])] == ["0 and 2", "0 and 1", "2 and 3"]


def test_the_page_says_what_differs_and_how_the_groups_agree_with_a_truth(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=12, kinds=3, rounds=1))
    record = read_run(directory)
    assert len(record.differences) == len(record.groups) * (len(record.groups) - 1) // 2
    text = words_of(page([record]))
    assert "What differs between the groups?" in text
    assert "adjusted Rand index" not in text
    about = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps(about | {"truth": record.labels}))
    assert read_run(directory).agreement == 1.0
    assert "to 1.00 (adjusted Rand index" in words_of(page([read_run(directory)]))
    for damaged in ([1, 2], {"000": [3]}, {"nobody": 1}):
        (directory / "run.json").write_text(json.dumps(about | {"truth": damaged}))
        assert read_run(directory).agreement is None
