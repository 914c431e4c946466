"""What a site remembers: versions by round, whole or not at all, each where the server may ask for it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from client import memory as room
from client.identity import Identity
from client.memory import Memory, forget_old_runs, open_memory
from common import wire
from common.config import Config, parse
from common.state import State

DAY = 24 * 3600.0


def memory_in(folder: Path, run: str = "ab12", rule: str = "scaffold") -> Memory:
    return Memory(folder, run, rule)


def version(token: int) -> State:
    return {"variate": np.full((3, 2), token, np.float32), "count": np.array(token)}


def token_of(state: State | None) -> int | None:
    return None if state is None else int(state["count"])


def rounds_in(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round-")) for path in folder.glob("*.safetensors"))


def task(**changes: object) -> wire.Task:
    values: dict[str, object] = {"settings": Config().for_site(), "round_number": 1, "rounds": 5, "run": "ab12"}
    return wire.Task(**(values | {"rule": "scaffold"} | changes))  # type: ignore[arg-type]


def simulated(name: str = "000", cache: Path | None = None) -> Identity:
    return Identity(name, None, (0, 2), cache, in_engine=True)


def own(name: str, cache: Path) -> Identity:
    return Identity(name, Path("/data/of/the/site"), None, cache)


class TestVersions:
    def test_what_is_remembered_is_recalled_bit_for_bit(self, tmp_path: Path) -> None:
        state: dict[str, np.ndarray] = {
            "a": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32).T,
            "counts": np.arange(5),
            "one": np.array(2.5),
        }
        memory_in(tmp_path / "m").remember(3, state)
        recalled = memory_in(tmp_path / "m").recall(3)
        assert recalled is not None
        assert recalled.keys() == state.keys()
        for name, array in state.items():
            np.testing.assert_array_equal(recalled[name], array)
            assert (recalled[name].dtype, recalled[name].shape) == (array.dtype, array.shape)

    def test_exactly_the_round_that_is_asked_for(self, tmp_path: Path) -> None:
        memory = memory_in(tmp_path / "m")
        memory.remember(1, version(1))
        memory.remember(4, version(4), accepted=1)
        assert token_of(memory.recall(1)) == 1
        assert token_of(memory.recall(4)) == 4
        assert [memory.recall(number) for number in (0, 2, 3, 5)] == [None] * 4

    def test_nothing_is_there_before_the_first_round(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert memory_in(tmp_path / "nowhere").recall(0) is None
        assert memory_in(tmp_path / "nowhere").recall(2) is None
        assert not (tmp_path / "nowhere").exists()
        assert not caplog.records

    def test_only_the_site_itself_can_read_it(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            memory_in(tmp_path / "run" / "m").remember(1, version(1))
        finally:
            os.umask(before)
        (file,) = (tmp_path / "run" / "m").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    def test_a_round_that_is_repeated_takes_the_place_of_the_first(self, tmp_path: Path) -> None:
        memory = memory_in(tmp_path / "m")
        memory.remember(1, version(1))
        memory.remember(2, version(2), accepted=1)
        memory.remember(2, version(22), accepted=1)
        assert token_of(memory.recall(2)) == 22
        assert token_of(memory.recall(1)) == 1

    def test_later_versions_are_dropped_when_the_next_one_is_written(self, tmp_path: Path) -> None:
        memory = memory_in(tmp_path / "m")
        memory.remember(1, version(1))
        memory.remember(2, version(2), accepted=1)
        assert rounds_in(tmp_path / "m") == [1, 2]
        memory.remember(3, version(3), accepted=1)
        assert rounds_in(tmp_path / "m") == [1, 3]

    def test_after_a_server_went_back_what_it_undid_is_dropped(self, tmp_path: Path) -> None:
        """Or the versions of rounds that never were would be the last two, and push out the one that counts."""
        memory = memory_in(tmp_path / "m")
        for number in range(1, 11):
            memory.remember(number, version(number), accepted=number - 1, checkpoints=(5,) if number > 5 else ())
        assert rounds_in(tmp_path / "m") == [5, 9, 10]
        assert token_of(memory.recall(5)) == 5
        memory.remember(6, version(66), accepted=5, checkpoints=(5,))
        assert rounds_in(tmp_path / "m") == [5, 6]
        assert token_of(memory.recall(6)) == 66

    def test_the_last_two_are_kept_and_one_for_each_checkpoint(self, tmp_path: Path) -> None:
        memory, folder = memory_in(tmp_path / "m"), tmp_path / "m"
        for number in (1, 2, 4, 7, 8):
            memory.remember(number, version(number), accepted=max(rounds_in(folder), default=0), checkpoints=(3, 6))
        assert rounds_in(folder) == [2, 4, 7, 8]
        memory.remember(9, version(9), accepted=8, checkpoints=(3, 6))
        assert rounds_in(folder) == [2, 4, 8, 9]
        memory.remember(10, version(10), accepted=9, checkpoints=(6, 9))
        assert rounds_in(folder) == [4, 9, 10]
        memory.remember(11, version(11), accepted=10)
        assert rounds_in(folder) == [10, 11]


def raise_error(*_: object, **__: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def kill(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def half_written(end: Callable[[], NoReturn]) -> Callable[..., None]:
    def write(path: Path, *_: object) -> None:
        path.write_bytes(b'\x40\x00\x00\x00\x00\x00\x00\x00{"va')
        end()

    return write


POINTS = pytest.mark.parametrize("point", ["write_tensors", "os.chmod", "os.fsync", "os.replace"])


class TestWholeOrNotAtAll:
    def break_at(self, monkeypatch: pytest.MonkeyPatch, point: str, end: Callable[..., NoReturn]) -> None:
        target = room.os if point.startswith("os.") else room
        replacement = end if point.startswith("os.") else half_written(end)
        monkeypatch.setattr(target, point.removeprefix("os."), replacement)

    def check(self, folder: Path) -> None:
        """The old version is there, the new one is not, and the next try is not in its way."""
        memory = memory_in(folder)
        assert token_of(memory.recall(1)) == 1
        assert memory.recall(2) is None
        assert rounds_in(folder) == [1]
        memory.remember(2, version(22), accepted=1)
        assert token_of(memory.recall(2)) == 22
        assert token_of(memory.recall(1)) == 1

    @POINTS
    def test_an_error_leaves_the_old_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        memory_in(tmp_path / "m").remember(1, version(1))
        with monkeypatch.context() as patch:
            self.break_at(patch, point, raise_error)
            with pytest.raises(OSError, match="No space left"):
                memory_in(tmp_path / "m").remember(2, version(2), accepted=1)
        self.check(tmp_path / "m")

    @POINTS
    def test_a_kill_leaves_the_old_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        memory_in(tmp_path / "m").remember(1, version(1))
        child = os.fork()
        if child == 0:
            try:
                self.break_at(monkeypatch, point, kill)
                memory_in(tmp_path / "m").remember(2, version(2), accepted=1)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        self.check(tmp_path / "m")


class TestUnreadable:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        memory_in(tmp_path / "m").remember(2, version(2))
        return tmp_path / "m"

    def refused(self, folder: Path, caplog: pytest.LogCaptureFixture) -> str:
        """What is logged when the version of round 2 cannot be had."""
        with caplog.at_level(logging.WARNING, "coterie"):
            assert memory_in(folder).recall(2) is None
        (line,) = caplog.messages
        assert "round 2" in line
        return line

    @pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, -1])
    def test_a_truncated_file_is_no_memory(self, folder: Path, caplog: pytest.LogCaptureFixture, keep: int) -> None:
        (file,) = folder.iterdir()
        file.write_bytes(file.read_bytes()[:keep])
        self.refused(folder, caplog)

    @pytest.mark.parametrize("content", [b"garbage", bytes(500), b"\xff" * 500, b"\x02" + bytes(7) + b"{}x"])
    def test_a_corrupt_file_is_no_memory(self, folder: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
        (file,) = folder.iterdir()
        file.write_bytes(content)
        self.refused(folder, caplog)

    def test_a_folder_in_its_place_is_no_memory(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        (file,) = folder.iterdir()
        file.unlink()
        file.mkdir()
        self.refused(folder, caplog)

    @pytest.mark.parametrize(("run", "rule"), [("cd34", "scaffold"), ("ab12", "fedper"), ("", "scaffold")])
    def test_a_file_of_another_run_or_rule_is_no_memory(
        self, folder: Path, caplog: pytest.LogCaptureFixture, run: str, rule: str
    ) -> None:
        with caplog.at_level(logging.WARNING, "coterie"):
            assert memory_in(folder, run, rule).recall(2) is None
        assert "round 2" in caplog.text
        assert token_of(memory_in(folder).recall(2)) == 2

    def test_a_file_of_another_round_is_no_memory(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        (file,) = folder.iterdir()
        memory_in(folder).remember(3, version(3), accepted=2)
        shutil.copy(folder / file.name.replace("2", "3"), file)
        self.refused(folder, caplog)

    def test_a_file_without_a_word_of_its_origin_is_no_memory(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (file,) = folder.iterdir()
        room.write_tensors(file, version(2))
        self.refused(folder, caplog)

    def test_what_cannot_be_read_does_not_stand_in_the_way(self, folder: Path) -> None:
        (file,) = folder.iterdir()
        file.write_bytes(b"garbage")
        memory_in(folder).remember(2, version(5))
        assert token_of(memory_in(folder).recall(2)) == 5


class TestWhere:
    def test_a_simulated_site_uses_the_folder_of_the_run(self, tmp_path: Path) -> None:
        chosen = parse({"cache": str(tmp_path / "cache")}).for_site()
        asked = task(settings=chosen, folder=str(tmp_path / "run" / "memory"))
        open_memory(simulated(), asked).remember(1, version(1))
        (file,) = tmp_path.rglob("*.safetensors")
        assert file.is_relative_to(tmp_path / "run" / "memory")
        assert token_of(open_memory(simulated(), asked).recall(1)) == 1

    def test_a_simulated_site_without_one_uses_its_cache(self, tmp_path: Path) -> None:
        asked = task(settings=parse({"cache": str(tmp_path / "cache")}).for_site())
        open_memory(simulated(), asked).remember(1, version(1))
        (file,) = tmp_path.rglob("*.safetensors")
        assert file.is_relative_to(tmp_path / "cache" / "memory")

    def test_a_site_of_its_own_never_heeds_a_folder_of_the_server(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "chosen by the server"
        chosen = parse({"cache": str(elsewhere)}).for_site()
        site, asked = own("ward-7", tmp_path / "cache"), task(settings=chosen, folder=str(elsewhere))
        open_memory(site, asked).remember(1, version(1))
        assert not elsewhere.exists()
        (file,) = tmp_path.rglob("*.safetensors")
        assert file.is_relative_to(tmp_path / "cache" / "memory")
        # Nor does it read from there.
        shutil.move(file.parents[1], elsewhere)
        assert open_memory(site, asked).recall(1) is None

    def test_a_restarted_site_remembers(self, tmp_path: Path) -> None:
        open_memory(own("ward-7", tmp_path), task()).remember(1, version(1))
        assert token_of(open_memory(own("ward-7", tmp_path), task(round_number=2)).recall(1)) == 1

    def test_another_run_starts_with_nothing(self, tmp_path: Path) -> None:
        open_memory(own("ward-7", tmp_path), task()).remember(1, version(1))
        assert open_memory(own("ward-7", tmp_path), task(run="cd34")).recall(1) is None
        assert open_memory(own("ward-7", tmp_path), task(rule="fedper")).recall(1) is None

    @pytest.mark.parametrize("folder", ["", "run"])
    @pytest.mark.parametrize(
        ("first", "second"),
        [("000", "001"), ("a", "A1"), ("a/b", "a%2Fb"), ("..", "."), ("", "ab12"), ("x y", "x%20y")],
    )
    def test_two_sites_of_one_process_never_see_each_others(
        self, tmp_path: Path, folder: str, first: str, second: str
    ) -> None:
        asked = task(
            settings=parse({"cache": str(tmp_path / "cache")}).for_site(), folder=folder and str(tmp_path / folder)
        )
        memories = [open_memory(simulated(name), asked) for name in (first, second)]
        memories[0].remember(1, version(10))
        assert memories[1].recall(1) is None
        memories[1].remember(1, version(20))
        memories[1].remember(2, version(21), accepted=1)
        memories[1].remember(3, version(22), accepted=2)
        assert token_of(memories[0].recall(1)) == 10
        assert token_of(memories[1].recall(3)) == 22

    @pytest.mark.parametrize(
        "name",
        ["..", ".", "", "../../x", "/etc/x", "a/../../../x", "~", "-rf", ".hidden", "a\0b", "a\nb", "con", "C:\\x",
         64 * "x", 64 * "é", 64 * "院", 64 * "𝒜", 5000 * "x"],
        ids=lambda name: ascii(name)[:20],
    )  # fmt: skip
    @pytest.mark.parametrize("make", [simulated, own], ids=["simulated", "own"])
    def test_no_name_leads_out_of_the_folder(
        self, tmp_path: Path, make: Callable[[str, Path], Identity], name: str
    ) -> None:
        home = tmp_path / "a" / "b" / "c"
        folder = home / "memory"
        open_memory(make(name, home), task(folder=str(folder))).remember(1, version(1))
        (file,) = tmp_path.rglob("*.safetensors")
        place = file.relative_to(folder)
        # The folder of the run, and in it one of this site alone.
        assert len(place.parts) == (2 if make is simulated else 3)
        assert file.resolve() == file
        assert token_of(open_memory(make(name, home), task(folder=str(folder))).recall(1)) == 1

    @pytest.mark.parametrize("run", ["../x", "..", "/etc", "AB", "a b", 33 * "a", "a\n"])
    def test_a_run_that_is_no_stamp_is_refused_before_anything_is_written(self, run: str) -> None:
        content = wire.pack_task(task())
        content["task"] = ConfigRecord(dict(content.config_records["task"]) | {"run": run})
        with pytest.raises(wire.WireError, match="stamp"):
            wire.unpack_task(content)


class TestForgetting:
    def aged(self, path: Path, days: float) -> None:
        for one in [path, *path.rglob("*")]:
            os.utime(one, (time.time() - days * DAY,) * 2)

    def old_run(self, site: Identity, days: float) -> Path:
        open_memory(site, task(run="01d0")).remember(1, version(1))
        assert site.cache is not None
        run = site.cache / "memory" / "run-01d0"
        self.aged(run, days)
        return run

    @pytest.mark.parametrize(("days", "stays"), [(1, True), (89, True), (91, False), (400, False)])
    def test_a_run_is_forgotten_after_ninety_days(self, tmp_path: Path, days: float, stays: bool) -> None:
        site = own("ward-7", tmp_path)
        run = self.old_run(site, days)
        forget_old_runs(site)
        assert run.exists() is stays

    def test_a_run_that_anybody_still_takes_part_in_is_not_forgotten(self, tmp_path: Path) -> None:
        site, neighbour = own("ward-7", tmp_path), own("ward-8", tmp_path)
        open_memory(neighbour, task(run="01d0")).remember(1, version(1))
        run = self.old_run(site, 400)
        open_memory(neighbour, task(run="01d0")).remember(2, version(2), accepted=1)
        os.utime(run, (time.time() - 400 * DAY,) * 2)
        forget_old_runs(site)
        assert token_of(open_memory(site, task(run="01d0")).recall(1)) == 1

    def test_other_things_in_the_cache_stay(self, tmp_path: Path) -> None:
        site = own("ward-7", tmp_path)
        self.old_run(site, 400)
        for name in ("embeddings", "models"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").touch()
            self.aged(tmp_path / name, 400)
        open_memory(site, task()).remember(1, version(1))
        forget_old_runs(site)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["embeddings", "memory", "models"]
        assert [path.name for path in (tmp_path / "memory").iterdir()] == ["run-ab12"]

    def test_a_simulated_site_forgets_nothing_and_nowhere_is_fine(self, tmp_path: Path) -> None:
        run = self.old_run(own("ward-7", tmp_path), 400)
        forget_old_runs(simulated("000", tmp_path))
        assert run.exists()
        forget_old_runs(own("ward-7", tmp_path / "nowhere"))

    def test_a_neighbour_that_forgets_at_the_same_time_does_no_harm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = own("ward-7", tmp_path)
        run = self.old_run(site, 400)
        listed = Path.iterdir

        def late(path: Path) -> list[Path]:
            found = list(listed(path))
            shutil.rmtree(run, ignore_errors=True)
            return found

        monkeypatch.setattr(Path, "iterdir", late)
        forget_old_runs(site)


# Any history: the server asks for a version, and it is there


@dataclass
class Server:
    """What a server knows of one site: which of its versions counted last, and the same in each checkpoint."""

    every: int
    round_number: int = 0
    # Round and token of the last version that counted; 0: none.
    accepted: tuple[int, int] = (0, 0)
    # By round; None: the file is there, and cannot be read.
    checkpoints: dict[int, tuple[int, int] | None] = field(default_factory=dict)

    def close(self) -> None:
        """End a round, with a checkpoint if it is time for one; the last two by name are kept."""
        if self.every and self.round_number % self.every == 0:
            self.checkpoints[self.round_number] = self.accepted
            self.checkpoints = {number: self.checkpoints[number] for number in sorted(self.checkpoints)[-2:]}

    def resume(self, spoilt: bool) -> None:
        """Die, and go on from the newest checkpoint, or from the one before if that is spoilt."""
        whole = [number for number in sorted(self.checkpoints) if self.checkpoints[number] is not None]
        if spoilt and len(whole) > 1:
            self.checkpoints[whole.pop()] = None
        if whole:
            self.round_number = whole[-1]
            self.accepted = self.checkpoints[whole[-1]] or (0, 0)


EVENTS = ("counted", "counted", "counted", "counted", "lost", "unasked", "killed", "resumed", "went back")


@settings(max_examples=100)
@given(st.integers(0, 5), st.lists(st.sampled_from(EVENTS), min_size=8, max_size=40))
def test_whatever_is_lost_the_version_that_counts_is_there(every: int, events: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, server = Path(name) / "m", Server(every)
        for token, event in enumerate(events, start=1):
            if event in ("resumed", "went back"):
                server.resume(spoilt=event == "went back")
                continue
            server.round_number += 1
            if event != "unasked":
                # The site may have been restarted since.
                memory, (last, expected) = memory_in(folder), server.accepted
                assert (token_of(memory.recall(last)) or 0) == expected
                if event != "killed":
                    memory.remember(
                        server.round_number, version(token), accepted=last, checkpoints=tuple(server.checkpoints)
                    )
                    assert len(rounds_in(folder)) <= 4
                if event == "counted":
                    server.accepted = (server.round_number, token)
            server.close()
