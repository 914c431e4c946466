"""Two more columns of accuracy: of the shared model, and of what a site holds right after its training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from common.metrics import EvaluationStatistics
from server.history.events import RoundFinished, RoundTrained, SiteLeftOut
from server.rounds.testing import RoundResult
from tests.support.resuming import check_resumed
from tests.support.runs import MakeConfig, on, run, run_to_disk

PERSONAL = ("ditto", "pfedme", "per-fedavg")


def last(record: object) -> RoundFinished:
    event: RoundFinished = record.of(RoundFinished)[-1]  # type: ignore[attr-defined]
    return event


def test_ditto_has_two_series_the_second_is_fedavgs(small_config: MakeConfig) -> None:
    """PFLlib puts global and personal accuracies into one list and reports the best of them."""
    ours, fedavg = run(small_config(method="ditto"))[0], run(small_config(method="fedavg"))[0]
    for mine, theirs in zip(ours.of(RoundFinished), fedavg.of(RoundFinished), strict=True):
        assert mine.shared is not None
        assert mine.shared.accuracy == pytest.approx(theirs.overall.accuracy)
        assert mine.shared.mean_site_accuracy == pytest.approx(theirs.mean_site_accuracy)
        assert mine.shared.sites == {site: pytest.approx(m.accuracy) for site, m in theirs.sites.items()}
        assert (theirs.shared, theirs.held, mine.held) == (None, None, None)
    assert last(ours).overall.accuracy != last(ours).shared.accuracy  # type: ignore[union-attr]


@pytest.mark.parametrize("method", PERSONAL)
def test_personal_methods_tell_the_shared_model_too(small_config: MakeConfig, method: str) -> None:
    record, _ = run(small_config(method=method, rounds=1, sites=2, train__lr=0.01))
    assert last(record).shared is not None


def test_alone_a_site_holds_what_it_is_tested_with(small_config: MakeConfig) -> None:
    record, _ = run(small_config(method="local", test__held=True))
    for event in record.of(RoundFinished):
        assert event.held.accuracy == pytest.approx(event.overall.accuracy)
        assert event.held.mean_site_accuracy == pytest.approx(event.mean_site_accuracy)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "scaffold", "fedccfa", *PERSONAL])
def test_testing_what_sites_hold_changes_no_model(small_config: MakeConfig, method: str) -> None:
    """What a site sends may share its memory with the network that it tests next."""
    settings = {"method": method, "sites": 3, "train__lr": 0.01, "pfedme__rate": 0.02}
    plain, tested = (run(small_config(**settings, test__held=held))[0] for held in (False, True))
    assert not tested.of(SiteLeftOut)
    ours, theirs = (record.of(RoundTrained)[-1].models[0] for record in (plain, tested))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert last(plain).overall == last(tested).overall
    assert set(last(tested).held.sites) == {"000", "001", "002"}  # type: ignore[union-attr]


def test_a_sites_last_training_counts_however_long_ago(small_config: MakeConfig) -> None:
    record, _ = run(small_config(method="fedavg", sites=4, rounds=4, train__fraction=0.25, test__held=True))
    counts = [len(event.held.sites) for event in record.of(RoundFinished)]
    assert counts[0] == 1
    assert counts == sorted(counts)


def test_the_table_and_the_summary_have_them(small_config: MakeConfig, tmp_path: Path) -> None:
    out = run_to_disk(small_config(method="ditto", rounds=1, sites=2, test__held=True), tmp_path / "run")
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    overall = next(row for row in rows if row["scope"] == "overall")
    summary = json.loads((out / "summary.json").read_text())
    for name in ("shared", "held"):
        assert float(overall[f"{name}_accuracy"]) == summary[name]["accuracy"]
        assert float(overall[f"mean_site_{name}_accuracy"]) == summary[name]["mean_site_accuracy"]
        of_sites = [float(row[f"{name}_accuracy"]) for row in rows if row["scope"] == "site"]
        assert np.mean(of_sites) == pytest.approx(summary[name]["mean_site_accuracy"])


def test_figures_that_cannot_be_are_refused_by_name(small_config: MakeConfig) -> None:
    def boast(request: Message, reply: Message) -> Message:
        reply.content["training"]["held_right"] = reply.content["training"]["held_of"] + 1
        return reply

    record, _ = run(small_config(method="fedavg", rounds=1, sites=2, test__held=True), fault=on("train", 0, boast))
    assert "test samples right" in record.reasons["train", "000"]


def test_the_order_of_arrival_leaves_no_trace() -> None:
    def told(order: list[int]) -> RoundFinished:
        result = RoundResult(1, 0.0, {str(place): 0 for place in order}, {}, {"0": (1, 3), "1": (0, 0)})
        for place in order:
            confusion = np.eye(2, dtype=np.int64) * (place + 1)
            statistics = EvaluationStatistics(confusion, np.zeros((2, 2, 256), np.int64), 0.0)
            result.add(str(place), statistics, place)
        return result.told()

    one, other = told([0, 1, 2]), told([2, 0, 1])
    assert one.shared == other.shared
    assert one.shared is not None
    assert one.shared.accuracy == 3 / 12
    assert one.held is not None
    assert one.held.sites == {"0": pytest.approx(1 / 3)}


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = {"method": "ditto", "sites": 4, "train__fraction": 0.5, "test__held": True}
    check_resumed(small_config, tmp_path, stop=3, rounds=3, **settings)
