"""The page says what the run directory says, whatever it holds, and nothing in it can run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.invented import Plot, write_run
from cli.main import main
from common.config import SettingsError, parse
from common.metrics import Metrics
from server.history.event_log import read_events
from server.history.events import (
    Event,
    GroupRetired,
    MemoryLost,
    ReplyAccepted,
    RunEnded,
    RunResumed,
    RunStarted,
    SitesMoved,
    SitesPersonalised,
    Solved,
)
from server.listeners.journal import Journal
from server.listeners.summary import Summary
from server.migration import Evidence
from server.report import page, read_run
from server.report.figure import round_axis
from server.report.grouping_words import choice_of_k, doubtful, verdict
from server.report.pair_figures import _block_means
from server.report.palette import DARK, DARK_SCALE, LIGHT, LIGHT_SCALE
from server.report.record import accuracies
from server.report.sections import sections
from server.report.study import reading, study
from server.report.training_figures import worst_sites
from server.report.words import sentences, who_decides, worse_sites
from tests.support.contrast import contrast
from tests.support.runs import MakeConfig, failed, on, run_to_disk
from tests.support.tables import wine_settings

EVIL = "</script><img src=x onerror=alert(1)>"
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(name: str = "run", **plot: Any) -> Path:
        return write_run(tmp_path / name, Plot(**plot))

    return make


class Reader(HTMLParser):
    """What a browser would find in the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.data: dict[str, str] = {}
        self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if values.get("id") else []
        self.links += [str(values[key]) for key in ("href", "src") if key in values]
        self._script = str(values.get("id", "")) if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.data[self._script] = self.data.get(self._script, "") + data


def figures(text: str) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(Reader(text).data["figures"])}


def words_of(text: str) -> str:
    return re.sub(r"<[^>]*>", " ", text.partition("<main>")[2].partition("</main>")[0])


# --- what every page has ---------------------------------------------------------------------------------------

PLOTS = {
    "twenty": Plot(),
    "one site": Plot(sites=1, kinds=1, rounds=2),
    "two sites": Plot(sites=2, kinds=2, rounds=2),
    "one group": Plot(sites=8, kinds=1, rounds=2, method="fedavg"),
    "alone": Plot(sites=5, method="local", rounds=2),
    "all alike": Plot(sites=8, kinds=1, spread=0.0, rounds=2),
    "trouble": Plot(sites=12, kinds=3, trouble=True, outcome="failed"),
    "preview": Plot(rounds=0),
    "hostile": Plot(sites=6, kinds=2, trouble=True, names=(EVIL, "b", "c", "<b>d", 'e"', "f&amp;"), reason=EVIL),
}  # fmt: skip


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())
def test_every_page_is_whole(plot: Plot, tmp_path: Path) -> None:
    text = page([read_run(write_run(tmp_path / "run", plot))])
    found = Reader(text)
    assert len(found.ids) == len(set(found.ids))
    wanted = {"summary", "groups-section", "costs-section", "incidents-section", "settings-section"}
    wanted |= {"training-section", "moves-section"} if plot.rounds else set()
    assert wanted <= set(found.ids)
    # Links lead to places in the page itself, and nowhere else.
    assert all(link == "data:," or link.lstrip("#") in found.ids for link in found.links)
    assert "img" not in found.tags
    assert found.tags.count("script") == 4
    drawings = figures(text)
    assert set(drawings) == {one for one in found.ids if one in drawings}
    assert text.count('class="plot"') == text.count("<figcaption") == text.count("data-csv=") == len(drawings)
    for one in drawings.values():
        is_matrix = any("triangle" in trace.get("z", {}) for trace in one["data"] if isinstance(trace.get("z"), dict))
        assert is_matrix or (one["columns"] and all(len(row) == len(one["columns"]) for row in one["rows"]))
    assert len(text.encode()) < 6_000_000
    assert "nan" not in words_of(text).lower().replace("financ", "")


def test_foreign_text_is_text(tmp_path: Path) -> None:
    text = page([read_run(write_run(tmp_path / "run", PLOTS["hostile"]))])
    assert "<img" not in text
    assert "&lt;/script&gt;&lt;img" in text
    data = Reader(text).data["figures"]
    assert "<" not in data
    # Where Plotly reads tags it finds none; the CSV has the name as it is.
    drawings = figures(text)
    assert drawings["map"]["data"][0]["text"][0] == EVIL.replace("<", "&lt;").replace(">", "&gt;")
    assert drawings["map"]["rows"][0][0] == EVIL


def test_only_the_two_known_scripts_may_run(make_run: MakeRun) -> None:
    text = page([read_run(make_run())])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    scripts = re.search(r"script-src ([^;]*);", policy[1])
    assert scripts is not None
    assert re.fullmatch(r"'sha256-[\w+/=]{44}' 'sha256-[\w+/=]{44}'", scripts[1])


def test_paths_of_the_machine_are_not_passed_on(small_config: MakeConfig, tmp_path: Path) -> None:
    directory = run_to_disk(small_config(rounds=1, out=str(tmp_path / "secret-place")), tmp_path / "secret-place-2")
    text = (directory / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in text


# --- what the words say ----------------------------------------------------------------------------------------


def test_a_real_run_ends_with_its_page(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(rounds=2)
    directory = run_to_disk(config, tmp_path / "run", fault=on("train", 2, failed))
    record = read_run(directory)
    summary = json.loads((directory / "summary.json").read_text())
    assert record.last is not None
    assert record.last.overall.accuracy == summary["final"]["accuracy"]
    assert record.labels == summary["labels"]
    assert {(one.who, one.stage) for one in record.incidents} >= {("002", "train")}
    assert sum(record.seconds.values()) == pytest.approx(summary["seconds"]["total"], abs=0.5)
    told = " ".join(sentences(record, study(record), []))
    for words in ("FMCL ran on 6 sites", "finished after 2 of 2 rounds", f"{summary['final']['accuracy']:.1%} of all"):
        assert words in told
    shown = unescape((directory / "report.html").read_text(encoding="utf-8"))
    assert all(sentence in shown for sentence in sentences(record, study(record), []))
    # Bytes of all sites, as the events have them.
    replies = read_events(directory).of(ReplyAccepted)
    assert sum(one.sent for stages in record.traffic.values() for one in stages.values()) == sum(
        reply.bytes_sent for reply in replies
    )


def test_stability_of_one_round_is_that_of_the_threshold_validation_chose(tmp_path: Path) -> None:
    settings = wine_settings(tmp_path, sites=9, partition__scheme="iid")
    record = read_run(run_to_disk(parse(settings), tmp_path / "run"))
    looked = study(record)
    assert record.grouping is not None
    assert record.distance is not None
    assert looked is not None
    assert looked.stability is not None
    labels = record.grouping.labels
    shared = labels[:, None] == labels
    assert record.distance[shared].max() > 0  # a group of sites that are not the same
    assert record.distance[shared].max() <= record.clustering.threshold
    # A group's diameter does not grow when sites are left out, so what was merged mostly stays merged.
    assert np.nanmin(looked.stability.kept_together(labels)) > 0.5


def test_fedavg_beside_it_names_who_is_worse_off(make_run: MakeRun) -> None:
    mine, fedavg = make_run("mine", seed=1), make_run("fedavg", method="fedavg", seed=2)
    record, beside = read_run(mine), read_run(fedavg)
    assert record.last is not None
    assert beside.last is not None
    here, there = accuracies(record.last.sites), accuracies(beside.last.sites)
    expected = {site for site in here if here[site] < there[site]}
    worse = worse_sites(record, beside)
    assert set(worse) == expected
    assert expected
    losses = [there[site] - here[site] for site in worse]
    assert losses == sorted(losses, reverse=True)
    text = page([record, beside])
    told = sentences(record, study(record), [beside])[1]
    assert f"{len(worse)} of 20 sites do worse in groups than under FedAvg: {worse[0]}" in told
    assert "ran with other data settings or another seed" in words_of(text)
    assert figures(text)["sites"]["rows"][0][-1] is not None
    assert 'id="comparison"' in text
    assert "ran with other data settings" not in page([record, read_run(make_run("again", seed=1, method="fedavg"))])


def test_models_that_only_know_the_frequent_class_are_exposed(make_run: MakeRun) -> None:
    record = read_run(make_run(rounds=1))
    looked = study(record)
    clear = verdict(record, looked)
    assert clear is not None
    assert clear.answer == "yes"
    last = record.rounds[-1]
    for accuracy, exposed in ((0.1, "no more than"), (0.3, "no more than"), (0.31, "not clearly more"), (0.5, "")):
        sites = {site: replace(one, accuracy=accuracy, naming=0.3) for site, one in last.sites.items()}
        record.rounds[-1] = replace(last, sites=sites)
        told, judged = sentences(record, looked, [])[1], verdict(record, looked)
        assert judged is not None
        assert ("most frequent class" in told) is bool(exposed)
        assert exposed in told
        # Groups that look well are not worth it as long as their models are worth nothing.
        assert judged.answer == ("unsure" if exposed else "yes")
        assert ("Not as the models are now" in judged.words) is bool(exposed)
        text = words_of(page([record]))
        assert text.count("always naming the most frequent class would get") == (len(record.groups) if exposed else 0)


def test_groups_are_not_worth_it_where_sites_do_better_alone(make_run: MakeRun) -> None:
    record, local = read_run(make_run(rounds=4)), read_run(make_run("local", rounds=4, method="local"))
    looked = study(record)
    local.rounds[-1] = replace(
        local.rounds[-1], sites={site: replace(one, accuracy=1.0) for site, one in local.rounds[-1].sites.items()}
    )
    judged = verdict(record, looked, [local])
    assert judged is not None
    assert judged.answer == "unsure"
    assert "sites on their own (Local) do better" in judged.words


def test_of_three_sites_it_is_said_that_nothing_can_be_tested(make_run: MakeRun) -> None:
    record = read_run(make_run(sites=3, kinds=2, rounds=2))
    looked = study(record)
    assert looked is not None
    text = words_of(page([record]))
    assert "With 3 sites that cannot be tested" in choice_of_k(record, looked)
    assert "With 3 sites that cannot be tested" in doubtful(record, looked)
    assert "draws" not in text
    assert "doubtful" not in text.replace("Doubtful sites?", "")


def test_ticks_are_at_whole_rounds() -> None:
    for last, step in ((1, 1), (9, 1), (20, 2), (100, 10), (2000, 200)):
        axis = round_axis(0, last)
        assert axis["dtick"] == step
        assert axis["range"][0] < 0 < last < axis["range"][1]


def test_the_verdict_follows_the_structure(make_run: MakeRun) -> None:
    cases = {
        "clear": ({"spread": 0.1}, "yes"),
        "alike": ({"kinds": 1, "spread": 0.0}, "no"),
        "one": ({"sites": 1}, "no"),
    }
    for name, (plot, answer) in cases.items():
        record = read_run(make_run(name, rounds=0, **plot))
        looked = study(record)
        assert looked is not None
        judged = verdict(record, looked)
        assert judged is not None
        assert judged.answer == answer, judged.words
        assert choice_of_k(record, looked)[0].isdigit()
        assert doubtful(record, looked)
    assert verdict(read_run(make_run("fedavg", method="fedavg")), None) is None


def test_reading_of_a_silhouette() -> None:
    assert [reading(value) for value in (0.9, 0.6, 0.3, 0.25, -0.4)] == [
        "strong", "reasonable", "weak", "no substantial", "no substantial",
    ]  # fmt: skip


def test_worst_tenth_is_the_one_of_the_metrics() -> None:
    accuracies = {f"{index:02d}": index / 20 for index in range(20)} | {"none": float("nan")}
    assert worst_sites(accuracies) == ["00", "01"]
    assert worst_sites({}) == []


def test_block_means_are_means_of_blocks() -> None:
    matrix = np.random.default_rng(0).random((7, 7))
    found = _block_means(matrix, 3)
    assert found.shape == (3, 3)
    assert found[0, 2] == pytest.approx(matrix[:3, 6:].mean())
    assert found[1, 1] == pytest.approx(matrix[3:6, 3:6].mean())


def test_incidents_in_several_rounds_are_one_row(make_run: MakeRun) -> None:
    record = read_run(make_run(trouble=True))
    incidents = next(part for part in sections([record]) if part.name == "incidents-section")
    assert "2–4" in incidents.body
    assert "no reply within 60 s" in incidents.body
    moves = next(part for part in sections([record]) if part.name == "moves-section")
    assert "late-1" in moves.body
    assert "4.7 × what is usual" in moves.body


def test_a_site_that_forgot_is_an_incident(make_run: MakeRun) -> None:
    directory = make_run(sites=4, rounds=2)
    Journal(directory).hear(MemoryLost(2, "003"))
    (incident,) = read_run(directory).incidents
    assert (incident.round_number, incident.who) == (2, "003")
    assert "no longer has what it remembered of the run" in page([read_run(directory)])


# --- what the directory lacks ----------------------------------------------------------------------------------


def test_a_growing_run_has_a_page_at_every_moment(make_run: MakeRun, tmp_path: Path) -> None:
    lines = (make_run(sites=4, kinds=2, rounds=2, trouble=True) / "events.jsonl").read_text().splitlines(keepends=True)
    growing = tmp_path / "growing"
    growing.mkdir()
    for count in range(len(lines) + 1):
        torn = lines[count][: len(lines[count]) // 2] if count < len(lines) else ""
        (growing / "events.jsonl").write_text("".join(lines[:count]) + torn)
        assert 'id="summary"' in page([read_run(growing)])


def test_damaged_files_are_named_and_left_out(make_run: MakeRun) -> None:
    directory = make_run()
    (directory / "run.json").write_text("{")
    (directory / "distances.npy").write_bytes(b"no numpy file")
    with (directory / "events.jsonl").open("a") as file:
        file.write('{"event": "RoundFinished", "time": 1}\n[1, 2]\n{"time": 2}\nnoise\n')
    record = read_run(directory)
    told = " ".join(record.notes)
    assert "run.json is missing or damaged" in told
    assert "distances.npy cannot be used" in told
    assert "4 lines of events.jsonl could not be understood" in told
    assert record.method == "fmcl"
    assert len(record.rounds) == 10
    text = page([record])
    assert "distances.npy cannot be used" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("data", ""), ("migration", []), ("data.classes", 1e-320), ("data.source", ["demo"]), ("data.name", {"a": 1})],
)
def test_settings_of_another_kind_are_damage(make_run: MakeRun, key: str, value: object) -> None:
    directory = make_run()
    about = json.loads((directory / "run.json").read_text())
    section, _, name = key.partition(".")
    about["config"] |= {section: {name: value} if name else value}
    (directory / "run.json").write_text(json.dumps(about))
    record = read_run(directory)
    assert any("run.json is missing or damaged" in note for note in record.notes)
    assert "run.json is missing or damaged" in page([record])


def test_a_card_that_counts_other_classes_is_left_out(make_run: MakeRun) -> None:
    directory = make_run()
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    card = next(line["card"] for line in lines if line["event"] == "SiteEnrolled")
    card["class_counts"].append(1)
    card["train_samples"] += 1
    (directory / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert f"What site {card['name']} said of itself is damaged" in page([read_run(directory)])


def test_a_matrix_of_another_size_is_not_used(make_run: MakeRun) -> None:
    directory = make_run()
    np.save(directory / "distances.npy", np.zeros((3, 3)))
    assert "it is 3×3 for 20 sites" in " ".join(read_run(directory).notes)


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match="RUN is the directory of a run"):
        read_run(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"\xff\xfe\x00")
    assert main(["report", str(tmp_path)]) == 2
    assert "is not the log of a run" in capsys.readouterr().err


def test_report_command(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = make_run("one"), make_run("other", method="fedavg")
    assert main(["report", str(one)]) == 0
    assert (one / "report.html").exists()
    assert main(["report", str(one), str(other), "--out", str(tmp_path / "both.html")]) == 0
    assert "both.html (2." in capsys.readouterr().out
    assert "Beside other runs" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert main(["report", str(one), "--out", str(tmp_path / "nowhere" / "x.html")]) == 2
    assert "name another file with --out" in capsys.readouterr().err


# --- colours ---------------------------------------------------------------------------------------------------


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#ffffff", "#ffffff") == 1


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_pass_aa(theme: dict[str, str]) -> None:
    for name in ("ink", "muted", "accent", "bad", "good"):
        for ground in ("paper", "panel"):
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    # Groups' numbers are written in their colours, so these are text too.
    for number in range(10):
        assert contrast(theme[f"g{number}"], theme["paper"]) >= 4.5, number
        assert contrast(theme[f"g{number}"], theme["panel"]) >= 4.5, number
    assert contrast(theme["line"], theme["paper"]) >= 3


@pytest.mark.parametrize(("theme", "scale"), [(LIGHT, LIGHT_SCALE), (DARK, DARK_SCALE)], ids=["light", "dark"])
def test_scales_run_one_way_and_end_in_strong_contrast(theme: dict[str, str], scale: tuple[str, ...]) -> None:
    steps = [contrast(colour, theme["paper"]) for colour in scale]
    assert steps == sorted(steps)
    assert steps[-1] >= 7


def test_groups_differ_by_shape_or_colour_up_to_seventy() -> None:
    from server.report.palette import group_colour, group_symbol

    assert len({(group_colour(group), group_symbol(group)) for group in range(70)}) == 70


# --- what methods do in the course of a run --------------------------------------------------------------------


@pytest.fixture
def split_run(make_run: MakeRun) -> Path:
    """A run of CFL with a split, a group that everybody left, and models of the sites' own."""
    directory = make_run(sites=6, rounds=4, method="cfl")
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    where = next(i for i, event in enumerate(events) if event["event"] == "RoundFinished") + 1
    metrics = Metrics(0.75, 0.5, 0.875, 0.25, 25)
    reason = "mean update 0.1 < 0.4, longest 2"
    told: list[Event] = [SitesMoved(2, ("001", "003"), 0, 1, True, Evidence(reason=reason)), GroupRetired(3, 7)]
    own = SitesPersonalised("select", {"001": "local", "002": "group"}, metrics, {"001": metrics}, 0.75, 0.625)
    summary, journal = Summary(directory), Journal(directory)
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events[:where]))
    for event in (*told, own):
        journal.hear(event)
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events[where:])
    # What the summary heard of it, by itself and as it is recalled from the log.
    summary.hear(RunStarted(parse({"method": "cfl", "sites": 6})))
    for event in told:
        summary.hear(event)
    summary.hear(RunEnded("finished", ""))
    return directory


def test_sites_that_the_method_regroups_have_moved(split_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_run(split_run)
    assert record.notes == []
    assert [(one.site, one.origin, one.target, one.founded) for one in record.moves] == [
        ("001", 0, 1, True), ("003", 0, 1, True),
    ]  # fmt: skip
    text = page([record])
    assert "Nobody moved" not in text
    assert "2 moves between groups" in text
    assert '<td class="why">mean update 0.1 &lt; 0.4, longest 2</td>' in text
    assert figures(text)["moves"]["rows"][1][-1] == "mean update 0.1 < 0.4, longest 2"
    assert "&lt; 0.4" in figures(text)["moves"]["data"][-1]["customdata"][0][-1]
    assert "Groups that nobody belongs to any more: 7 (since round 3)." in text
    moves = json.loads((split_run / "summary.json").read_text())["moves"]
    expected = {"round": 2, "from": 0, "to": 1, "founded": True, "reason": "mean update 0.1 < 0.4, longest 2"}
    assert moves == [{"site": "001", **expected}, {"site": "003", **expected}]
    capsys.readouterr()
    assert main(["moves", str(split_run)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["round", "site", "from", "to", "reason"]
    assert [line[:5] for line in shown[1:]] == [["2", "001", "0", "1", "(new)"], ["2", "003", "0", "1", "(new)"]]
    assert main(["moves", str(split_run), "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["site"], entry["evidence"]) for entry in entries] == [
        (site, {"reason": expected["reason"]}) for site in ("001", "003")
    ]


def test_a_summary_recalls_what_was_regrouped_before_a_restart(split_run: Path) -> None:
    summary = Summary(split_run)
    summary.hear(RunResumed(parse({"method": "cfl", "sites": 6}), "stamp", 3, (), {}, {}))
    summary.hear(RunEnded("finished", ""))
    moves = json.loads((split_run / "summary.json").read_text())["moves"]
    assert [(move["site"], move["to"]) for move in moves] == [("001", 1), ("003", 1)]


def test_models_of_the_sites_own_stand_beside_the_groups(split_run: Path, make_run: MakeRun) -> None:
    record, plain = read_run(split_run), read_run(make_run("plain", sites=6, rounds=4, method="cfl"))
    assert record.last == plain.last
    assert [tile in page([record]) for tile in ("<b>75.0%</b>", "personalise = ")] == [False, True]
    training = next(one for one in sections([record]) if one.name == "training-section").body
    rows = re.findall(r"<tr>(<th scope=row.*?)</tr>", training)
    assert [re.sub(r"<[^>]*>", "|", row).strip("|").split("||")[0] for row in rows] == [
        "of the group, round 4", "personalised (select)",
    ]  # fmt: skip
    assert "75.0%" in rows[1]
    assert "62.5%" in rows[1]
    assert "their group&#x27;s model (1), one trained on their own data alone (1)" in training
    assert "own models" not in page([plain])


def test_what_validation_chose_is_told(make_run: MakeRun) -> None:
    directory = make_run(sites=6, rounds=1)
    Journal(directory).hear(Solved(0.6, (64, 32), {"0.6 64-32": 0.9}, {"000": 4}, {"000": 10.0}))
    text = page([read_run(directory)])
    assert "Validation chose the threshold 0.6 and layers of 64 and 32 units." in text


def test_a_site_that_decides_what_its_group_learns_is_named(make_run: MakeRun) -> None:
    record = read_run(make_run(sites=6, rounds=0))
    assert record.grouping is not None
    group = int(record.grouping.labels[0])
    members = [site for site, of in zip(record.grouping.sites, record.grouping.labels, strict=True) if of == group]
    assert len(members) > 1
    for site, card in record.cards.items():
        record.cards[site] = replace(card, train_samples=900 if site == members[0] else 50)
    assert f"{members[0]} has" in who_decides(record)
    assert f"of the samples of group {group}" in " ".join(sentences(record, None, []))
    for site, card in record.cards.items():
        record.cards[site] = replace(card, train_samples=50)
    assert "aggregate.cap" not in " ".join(sentences(record, None, []))


def test_the_page_tells_a_sites_own_model_from_the_one_that_is_shared(small_config: MakeConfig, tmp_path: Path) -> None:
    directory = run_to_disk(small_config(method="ditto", rounds=2, test__held=True), tmp_path / "run")
    record = read_run(directory)
    assert record.last is not None
    assert record.last.shared is not None
    assert record.last.held is not None
    text = page([record])
    assert "Sites have models of their own, which they keep." in unescape(text)
    rows = text.partition("Which model is tested")[2].partition("</table>")[0]
    for one in (record.last.overall, record.last.shared, record.last.held):
        assert f"{100 * one.accuracy:.1f}%" in rows
    names = [trace["name"] for trace in figures(text)["training"]["data"]]
    assert {"shared model, all test samples", "after own training, all test samples"} <= set(names)
    plain = page([read_run(run_to_disk(small_config(method="fedavg", rounds=1), tmp_path / "plain"))])
    assert "Which model is tested" not in plain
