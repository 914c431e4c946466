"""The display says what a person wants to know, in a terminal and in a log."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from common.config import Config, parse
from common.metrics import Metrics
from common.site_card import SiteCard
from server.history.events import (
    Event,
    GroupKept,
    GroupsFormed,
    MemoryLost,
    ReplyAccepted,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunStarted,
    SiteEnrolled,
    SiteLeftOut,
    SitePlaced,
    StageStarted,
)
from server.listeners.progress import LiveProgress, PlainProgress
from tests.support.tables import wine_settings

GOOD = Metrics(0.9, 0.8, 0.95, 0.1, 10)
STORY: list[Event] = [
    RunStarted(Config(rounds=4, sites=3)),
    StageStarted("enrol", 0, 3),
    SiteEnrolled(SiteCard("a", 8, 2, (8,), 2, ("x.png: truncated",)), late=False),
    GroupsFormed(("a", "b", "c"), (0, 0, 1), np.zeros((3, 3)), {2: 0.7}, (1, 2, 3), 0.5),
    StageStarted("train", 1, 3),
    ReplyAccepted("train", 1, "a", 10, 10, 0.1),
    SiteLeftOut("train", 1, "b", "no reply within 60 s [round.deadline]"),
    GroupKept(1, 1, 0, 1),
    StageStarted("evaluate", 1, 3),
    RoundFinished(1, GOOD, {0: GOOD, 1: GOOD}, {"a": GOOD, "c": GOOD}, {"a": 0, "b": 0, "c": 1}, 0.91, 0.5, 0.3, {}),
    SitePlaced(2, "d", 1, 0.25),
]
END = RunEnded("finished", "")


def test_plain_lines_tell_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainProgress(Path("/runs/x"))
    for event in [*STORY, END]:
        display.hear(event)
    text = capsys.readouterr().out
    for words in (
        "fmcl, seed 0, 4 rounds → /runs/x",
        "asking 3 sites",
        "site a: 8 training samples, 2 unusable files (x.png: truncated)",
        "3 sites in 2 groups of 2, 1; K chosen by silhouette 0.70 (CV 0.50)",
        "round 1, train: b left out: no reply within 60 s [round.deadline]",
        "group 1 keeps its model",
        "round 1/4: accuracy 0.900 mean of sites 0.910 worst tenth 0.500",
        "late site d joins group 1 (confidence 0.25)",
        "finished after",
    ):
        assert words in text


def test_models_that_only_know_the_frequent_class_are_warned_of_in_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    poor = replace(GOOD, accuracy=0.5, naming=0.5)
    (last,) = (event for event in STORY if isinstance(event, RoundFinished))
    for metrics, warned in ((poor, True), (replace(GOOD, naming=0.1), False)):
        display = PlainProgress(tmp_path)
        for event in [*STORY, replace(last, sites={"a": metrics}), END]:
            display.hear(event)
        assert ("WARNING: 50.0% right" in capsys.readouterr().out) is warned


def test_a_run_that_ended_early_says_how_it_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for checkpoints in (False, True):
        if checkpoints:
            (tmp_path / "checkpoint").mkdir()
        display = PlainProgress(tmp_path)
        for event in [*STORY, RunEnded("interrupted", "stopped by the operator")]:
            display.hear(event)
        assert (f"--resume --out {tmp_path}" in capsys.readouterr().out) is checkpoints


def test_a_table_has_no_unusable_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    display = PlainProgress(tmp_path)
    display.hear(RunStarted(parse(wine_settings(tmp_path))))
    display.hear(SiteEnrolled(SiteCard("a", 8, 2, (8,), 3, ()), late=False))
    text = capsys.readouterr().out
    assert "3 columns with values that were left out or stood in for" in text
    assert "files" not in text


def test_live_panel_shows_stage_groups_incidents_and_time() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    display = LiveProgress(Path("/runs/x"), console)
    for event in STORY:
        display.hear(event)
    console.print(display._draw())
    text = screen.getvalue()
    display.hear(END)
    for words in (
        "fmcl",
        "round 1/4",
        "testing",
        "accuracy",
        "0.900",
        "b left out",
        "[round.deadline]",
        "left",
        "/runs/x",
    ):
        assert words in text


def test_rounds_that_are_not_tested_have_a_line_and_move_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"a": 0}
    story: list[Event] = [
        RunStarted(Config(rounds=4, sites=3)),
        RoundTrained(1, 0.5, labels),
        RoundTrained(2, math.nan, labels),
        MemoryLost(3, "a"),
        RoundFinished(2, GOOD, {}, {"a": GOOD}, labels, 0.9, 0.9, 0.4, {}),
        RoundTrained(3, 0.25, labels),
        RoundTrained(4, 0.25, labels),
        RoundFinished(4, GOOD, {}, {"a": GOOD}, labels, 0.9, 0.9, 0.4, {}),
    ]
    display = PlainProgress(Path("/runs/x"))
    for event in story:
        display.hear(event)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == [
        "round 1/4: trained",
        "round 3: site a no longer has what it remembered of the run and starts fresh",
        "round 2/4: accuracy 0.900 mean of sites 0.900 worst tenth 0.900",
        "round 3/4: trained",
        "round 4/4: accuracy 0.900 mean of sites 0.900 worst tenth 0.900",
    ]
    panel = LiveProgress(Path("/runs/x"), Console(file=io.StringIO()))
    for event in story[:3]:
        panel.hear(event)
    assert panel._clock.done == 2
    panel.hear(END)
