"""A site that watches itself: what it remembers, when it raises its hand, and what it does when it has forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.answers.introduction import introduce
from client.encoder import EncoderError
from client.fingerprints.description import CERTAIN
from client.identity import Identity
from client.memory import open_memory
from client.request import Request, data_of
from client.watching import changed
from common import wire
from common.config import Config
from common.drift import DriftEvent
from tests.support.federation import write_digits
from tests.support.runs import MakeConfig

ROUNDS, DRIFT = 20, 5
SWAP = DriftEvent(kind="swap", at=DRIFT, sites=("000", "001"))


@pytest.fixture
def config(small_config: MakeConfig) -> Config:
    return small_config(
        rounds=ROUNDS, partition__scheme="disjoint", partition__groups=2, drift=(SWAP,), encoder__name="pixels"
    )


def asked(
    config: Config, folder: Path, number: int, described: int | None = 0, index: int = 0, run: str = "ab12"
) -> Request:
    task = wire.Task(
        config.for_site(), number, ROUNDS, run, "fedavg", folder=str(folder), described=described, checkpoints=(number,)
    )
    identity = Identity(f"{index:03d}", None, (index, config.sites), None, in_engine=True)
    content = wire.pack_task(task)
    return Request(content, wire.unpack_task(content), identity, data_of(identity, task, number))


def test_whose_data_change_raises_its_hand_and_nobody_else(config: Config, tmp_path: Path) -> None:
    for index in range(4):
        introduce(asked(config, tmp_path, 0, index=index), "signature")
    for number in (1, DRIFT - 1):
        assert [changed(asked(config, tmp_path, number, index=index)) for index in range(4)] == [0.0] * 4
    after = [changed(asked(config, tmp_path, DRIFT, index=index)) for index in range(4)]
    assert min(after[:2]) > 4
    assert after[2:] == [0.0, 0.0]
    # Once it has been asked, the new is what it compares itself with; and the old, if that never arrived.
    introduce(asked(config, tmp_path, DRIFT), "signature")
    assert changed(asked(config, tmp_path, DRIFT + 1, described=DRIFT)) == 0
    assert changed(asked(config, tmp_path, DRIFT + 1, described=0)) == after[0]


@pytest.mark.parametrize("kind", ["contrast", "invert"])
def test_other_images_of_the_same_classes_are_seen(small_config: MakeConfig, tmp_path: Path, kind: Any) -> None:
    event = DriftEvent(kind=kind, at=DRIFT, sites=("000",), over=4)
    config = small_config(rounds=ROUNDS, partition__scheme="iid", drift=(event,), encoder__name="pixels")
    introduce(asked(config, tmp_path, 0), "signature")
    levels = [changed(asked(config, tmp_path, number)) for number in range(DRIFT - 1, DRIFT + 4)]
    assert levels[0] == 0
    assert levels == sorted(levels)
    assert levels[-1] > 4


def test_nothing_is_compared_or_kept_unless_the_server_asks_for_it(config: Config, tmp_path: Path) -> None:
    introduce(asked(config, tmp_path, 0, described=None), "signature")
    assert not list(tmp_path.rglob("*.safetensors"))
    assert changed(asked(config, tmp_path, DRIFT, described=None)) == 0


def test_unchanged_data_are_not_embedded_again(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    introduce(asked(config, tmp_path, 0), "signature")
    monkeypatch.setattr(Request, "embedded", lambda self: pytest.fail("nothing has changed"))
    assert changed(asked(config, tmp_path, 3)) == 0


def test_who_has_forgotten_what_it_said_asks_to_be_asked(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert changed(asked(config, tmp_path, 3)) == CERTAIN
    introduce(asked(config, tmp_path, 3), "signature")
    assert changed(asked(config, tmp_path, 3, described=3)) == 0
    assert changed(asked(config, tmp_path, 3, described=3, run="ff00")) == CERTAIN
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(b"torn")
    assert changed(asked(config, tmp_path, 3, described=3)) == CERTAIN
    assert "does not remember what it said of itself in round 3" in caplog.text


def test_an_encoder_that_is_gone_is_no_change_and_costs_no_update(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(asked(config, tmp_path, 0), "signature")

    def gone(error: Exception) -> Any:
        def fail(request: Request) -> None:
            raise error

        return fail

    # An error of the settings is a ValueError; others are anything.
    for error in (EncoderError("its weights are gone"), RuntimeError("out of memory")):
        monkeypatch.setattr(Request, "embedded", gone(error))
        assert changed(asked(config, tmp_path, DRIFT)) == 0
    assert caplog.text.count("cannot see whether it has changed") == 2


@pytest.mark.parametrize("spoil", [lambda a: {"counts": a["counts"]}, lambda a: a | {"means": a["means"][:, :3]}])
def test_a_memory_that_makes_no_sense_is_none(config: Config, tmp_path: Path, spoil: Any) -> None:
    introduce(asked(config, tmp_path, 0), "signature")
    memory = open_memory(asked(config, tmp_path, 0).identity, asked(config, tmp_path, 0).task, "description")
    before = memory.recall(0)
    assert before is not None
    memory.remember(0, spoil(before) | {"state": before["state"][::-1].copy()})
    assert changed(asked(config, tmp_path, 3)) == CERTAIN


def test_a_disk_that_is_full_keeps_nobody_away(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "000").write_text("in the way")
    introduce(asked(config, tmp_path, 0), "signature")
    assert "cannot remember what it says of itself" in caplog.text


def test_a_site_of_its_own_remembers_in_its_own_folder(config: Config, tmp_path: Path) -> None:
    request = asked(config, tmp_path / "server", 0)
    own = replace(request, identity=replace(request.identity, in_engine=False, memory=tmp_path / "own"))
    introduce(own, "signature")
    assert not (tmp_path / "server").exists()
    assert [path.name for path in (tmp_path / "own").rglob("*.safetensors")] == ["round-0000000000.safetensors"]


def test_a_real_site_that_is_watched_sees_its_own_folder_change(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(
        encoder__name="pixels", data__watch=True, data__source="folder", data__classes=tuple("0123"), rounds=ROUNDS
    )
    identity = Identity("clinic", tmp_path / "scans", None, tmp_path / "cache", memory=tmp_path / "memory")

    def at(number: int) -> Request:
        task = wire.Task(config.for_site(), number, ROUNDS, "ab12", "fedavg", described=0)
        return Request(wire.pack_task(task), task, identity, data_of(identity, task, number))

    write_digits(tmp_path / "scans", [0, 1], count=30)
    introduce(at(0), "signature")
    assert changed(at(1)) == 0
    # More of the same is no change, though every file counts.
    write_digits(tmp_path / "more", [0, 1], first=30, count=10)
    _add(tmp_path / "more", tmp_path / "scans")
    assert changed(at(2)) == 0
    write_digits(tmp_path / "others", [2, 3], count=30)
    _add(tmp_path / "others", tmp_path / "scans")
    assert changed(at(3)) > 4


def _add(source: Path, target: Path) -> None:
    for path in source.rglob("*.png"):
        place = target / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
