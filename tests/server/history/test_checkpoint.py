"""Checkpoints: whole or not there, verified, and enough to go on from, bit for bit."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cli.deployment.cut_off import mark_cut_off
from cli.simulation.engine import simulate
from common import wire
from common.config import Config, SettingsError, flat_values
from common.kept_model import load_model
from common.tensors import write_tensors
from server import app as server_app
from server.app import conduct
from server.history.checkpoint import Checkpoints, InvalidCheckpoint, read
from server.history.event_log import read_events
from server.history.events import (
    CheckpointFailed,
    Event,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunResumed,
    RunStarted,
    StageStarted,
)
from server.history.run_directory import Appended, as_begun, open_run, own_run
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record

ROOT = Path(__file__).parents[3]

arrays = npst.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]), npst.array_shapes(min_dims=0, max_dims=3)
)
states = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | arrays,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text().filter(lambda key: key != "array"), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(first: object, second: object) -> bool:
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and first.tobytes() == second.tobytes()
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict) and first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
        )
    if isinstance(first, list):
        return isinstance(second, list) and len(first) == len(second) and all(map(same, first, second))
    return first == second


@given(state=st.dictionaries(st.text().filter(lambda key: key != "array"), states, max_size=3))
def test_what_is_saved_is_read_back(state: dict, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("checkpoint"))
    checkpoints.save(7, state)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 7
    assert same(state, found[1])


STATE = {"weights": np.arange(1000, dtype=np.float32), "round": 3}


def test_the_last_two_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new folder")
    assert checkpoints.latest() is None
    for number in (9, 10, 11):
        checkpoints.save(number, STATE | {"round": number})
    assert sorted(path.name for path in (tmp_path / "new folder").iterdir()) == [
        "round-000010.checkpoint",
        "round-000011.checkpoint",
    ]
    found = checkpoints.latest()
    assert found is not None
    assert found[1]["round"] == 11


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content[:-1], id="cut by a byte"),
        pytest.param(lambda content: content[: len(content) // 2], id="half"),
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:], id="a flipped bit"),
        pytest.param(lambda content: content + b"more", id="something after the end"),
        pytest.param(lambda content: b"\x80\x04." + content, id="something before the beginning"),
    ],
)
def test_a_damaged_one_is_refused_and_the_one_before_is_used(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE | {"round": 1})
    checkpoints.save(2, STATE | {"round": 2})
    path = tmp_path / "round-000002.checkpoint"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidCheckpoint):
        read(path)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == found[1]["round"] == 1


# Only ever opened and written to: safetensors, which replaces files, would replace the device.
FULL = Path("/dev/full")


def test_tensors_that_do_not_fit_are_an_os_error(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="weights cannot be written"):
            write_tensors(tmp_path / "weights", {"weights": np.ones(100_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_one_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000001.checkpoint"]


def test_what_a_full_disk_refuses_is_written_later_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = Appended(path)
    file.append("one\n")
    path.rename(tmp_path / "aside")
    path.symlink_to(FULL)
    for block in ("two\n", "three\n"):
        with pytest.raises(OSError, match="No space"):
            file.append(block)
    path.unlink()
    (tmp_path / "aside").rename(path)
    file.append("four\n")
    assert path.read_text() == "one\ntwo\nthree\nfour\n"


# --- whole runs -------------------------------------------------------------------------------------------------------


class Stop(Exception):
    """What a run dies of."""


def dies_in(round_number: int) -> type:
    class Dying(LoopbackGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            messages = list(messages)
            for message in messages:
                if message.metadata.message_type == "train" and message.content["task"]["round"] == round_number:
                    raise Stop
            return super().push_messages(messages)

    return Dying


def carry_out(config: Config, grid: type = LoopbackGrid) -> Record:
    record = Record()
    directory = open_run(config)
    conduct(grid(config.sites), config, [*run_listeners(directory), record], directory=directory)
    return record


@pytest.fixture
def quick(small_config: MakeConfig, tmp_path: Path) -> MakeConfig:
    def make(**overrides: object) -> Config:
        settings = {"rounds": 4, "train__model": "mlp", "train__fraction": 0.5, "out": str(tmp_path / "run")}
        return small_config(**(settings | overrides))

    return make


@pytest.mark.parametrize(
    "method",
    [
        {"method": "fmcl"},
        {"method": "local"},
        {
            "method": "fmcl", "migration__rule": "guarded", "train__fraction": 1.0, "train__batch_size": 8,
            "cluster__k": 2, "partition__scheme": "disjoint", "partition__groups": 2, "rounds": 9,
            "drift": '[{"kind": "swap", "at": 6, "sites": ["000", "001"]}]',
        },
        {"method": "fedcm", "migration__rule": "fedcm"},
        {"method": "cfl", "cfl__after": 0, "cfl__mean_norm": 10.0, "cfl__max_norm": 0.01, "rounds": 6},
        {"method": "ifca", "cluster__k": 2},
        {"method": "fmcl", "aggregate__rule": "clipped"},
        # Twice as long as all the others together.
        pytest.param({"method": "fedavg", "train__model": "resnet9", "rounds": 2}, marks=pytest.mark.federation),
    ],
    ids=["fmcl", "local", "migration", "fedcm with the published rule", "cfl", "ifca", "clipped", "batch norm"],
)  # fmt: skip
def test_a_run_that_died_goes_on_as_if_it_had_not(quick: MakeConfig, tmp_path: Path, method: dict) -> None:
    whole = quick(**method, out=str(tmp_path / "whole"))
    carry_out(whole)
    last = whole.rounds
    with pytest.raises(Stop):
        carry_out(quick(**method), dies_in(last))
    record = carry_out(quick(**method, resume="auto"))
    (resumed,) = record.of(RunResumed)
    assert resumed.round_number == last - 1
    assert [event.round_number for event in record.of(RoundFinished)] == [last - 1, last]
    for name in ("metrics.csv", "clusters.json", "distances.npy"):
        if (tmp_path / "whole" / name).exists():
            assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    first, second = (json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "run"))
    # Time is not the same, and the round that died is told of, too.
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    models = sorted(path.name for path in (tmp_path / "whole" / "models").iterdir())
    assert models == sorted(path.name for path in (tmp_path / "run" / "models").iterdir())
    for name in models:
        assert (tmp_path / "run" / "models" / name).read_bytes() == (tmp_path / "whole" / "models" / name).read_bytes()


def test_a_site_that_is_gone_when_the_run_goes_on_is_named_and_may_come_back(quick: MakeConfig) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg", train__fraction=1.0), dies_in(2))

    class OneMissing(LoopbackGrid):
        def __init__(self, sites: int) -> None:
            super().__init__(sites)
            self.disconnect(102)

    record = carry_out(quick(method="fedavg", train__fraction=1.0, resume="auto", round__start_timeout=0.1), OneMissing)
    assert record.reasons["train", "002"] == "not connected"
    assert record.of(RunEnded)[0].outcome == "finished"


def test_a_site_that_was_added_meanwhile_does_not_stand_in_the_way(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(2))
    more = quick(method="fedavg", resume="auto")
    more = more.model_copy(update={"sites": more.sites + 1})
    with pytest.raises(SettingsError, match=f"sites = {more.sites} "):
        open_run(more)
    waits = as_begun(more)
    assert waits.sites == more.sites - 1
    assert open_run(waits) == Path(more.out)
    for other in (quick(resume="never"), quick(resume="auto", out=str(tmp_path / "nothing"))):
        assert as_begun(other) == other


def test_resuming_is_refused_where_it_would_mislead(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs to know which run"):
        open_run(quick(resume="auto", out=""))
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(2))
    with pytest.raises(SettingsError, match="resume = 'auto'"):
        open_run(quick(method="fedavg"))
    with pytest.raises(SettingsError, match=r"train.lr = 0.5 \(was 0.1\)"):
        open_run(quick(method="fedavg", resume="auto", train__lr=0.5))
    carry_out(quick(method="fedavg", resume="auto", round__deadline=30.0))
    with pytest.raises(SettingsError, match="finished"):
        open_run(quick(method="fedavg", resume="auto"))


def test_a_run_whose_process_is_told_to_end_says_so_and_can_be_resumed(quick: MakeConfig, tmp_path: Path) -> None:
    class Told:
        def hear(self, event: Event) -> None:
            # As Flower's handler of SIGTERM leaves the ServerApp.
            if isinstance(event, RoundTrained) and event.round_number == 2:
                raise SystemExit(0)

    config = quick(method="fedavg")
    directory = open_run(config)
    with pytest.raises(SystemExit):
        conduct(LoopbackGrid(config.sites), config, [*run_listeners(directory), Told()], directory=directory)
    kept = json.loads((directory / "run.json").read_text())
    assert kept["outcome"] == "interrupted"
    assert "server was stopped" in kept["reason"]
    assert carry_out(quick(method="fedavg", resume="auto")).of(RunEnded)[0].outcome == "finished"


def test_a_run_that_was_cut_off_does_not_stay_running(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    path = tmp_path / "run" / "run.json"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("[")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"outcome": "running"}))
    # As long as somebody works there it is running.
    with own_run(quick(method="fedavg", resume="auto")):
        assert mark_cut_off(tmp_path) == []
    assert mark_cut_off(tmp_path) == [tmp_path / "run"]
    assert json.loads(path.read_text())["outcome"] == "interrupted"
    assert mark_cut_off(tmp_path) == []
    assert carry_out(quick(method="fedavg", resume="auto")).of(RunEnded)[0].outcome == "finished"


def test_a_run_directory_has_one_process_at_work(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    config = quick(method="fedavg", resume="auto")
    told = (tmp_path / "run" / "events.jsonl").read_bytes()
    with own_run(config):
        # Both ways that a run can begin.
        with pytest.raises(SettingsError, match=r"run is in use by process \d+ on this machine, since"):
            simulate(config, jobs=1)
        with pytest.raises(SettingsError, match="is in use by process"):
            server_app.main(LoopbackGrid(config.sites), Context(1, 1, {}, RecordDict(), flat_values(config)))
        assert (tmp_path / "run" / "events.jsonl").read_bytes() == told
    assert simulate(config, jobs=1) == "finished"


def test_a_run_that_cannot_go_on_leaves_its_directory_as_it_was(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    kept = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(SettingsError, match=r"round\.min_replies = 2"):
        open_run(quick(method="fedavg", resume="auto", round__min_replies=2))
    for path in (tmp_path / "run" / "checkpoint").iterdir():
        number, state = int(path.stem[-6:]), read(path)
        state["strategy"]["groups"]["models"]["0"]["head.bias"] = np.zeros(3, np.float32)
        Checkpoints(path.parent).save(number, state)
    with pytest.raises(SettingsError, match="does not fit"):
        carry_out(quick(method="fedavg", resume="auto"))
    assert (tmp_path / "run" / "run.json").read_bytes() == kept


@pytest.mark.parametrize("damage", ["gone", "torn", "ahead"])
def test_a_run_goes_on_without_its_table_of_metrics(quick: MakeConfig, tmp_path: Path, damage: str) -> None:
    whole, table = tmp_path / "whole" / "metrics.csv", tmp_path / "run" / "metrics.csv"
    carry_out(quick(method="fedavg", out=str(whole.parent)))
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    content = table.read_bytes()
    if damage == "gone":
        table.unlink()
    else:
        table.write_bytes(content[:-10] if damage == "torn" else content + content[-200:])
    carry_out(quick(method="fedavg", resume="auto"))
    assert table.read_bytes() == whole.read_bytes()


def test_rounds_that_the_log_lacks_are_named_when_the_run_goes_on(
    quick: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(4))
    log = tmp_path / "run" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"round_number": 2' not in line))
    carry_out(quick(method="fedavg", resume="auto"))
    assert "rounds not found: 2; unreadable lines: 0" in caplog.text
    assert [event.round_number for event in read_events(log.parent).of(RoundFinished)] == [1, 3, 4]


def test_a_run_keeps_its_stamp_when_it_goes_on(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    (started,) = read_events(tmp_path / "run").of(RunStarted)
    (resumed,) = carry_out(quick(method="fedavg", resume="auto")).of(RunResumed)
    assert started.stamp == resumed.stamp != ""
    assert json.loads((tmp_path / "run" / "run.json").read_text())["stamp"] == started.stamp
    (other,) = carry_out(quick(method="fedavg", out=str(tmp_path / "other"))).of(RunStarted)
    assert other.stamp != started.stamp


def test_a_line_torn_by_a_kill_does_not_swallow_the_next(quick: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(3))
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"time": 1, "event": "RoundFini')
    carry_out(quick(method="fedavg", resume="auto"))
    log = read_events(tmp_path / "run")
    assert [event.round_number for event in log.of(RoundFinished)] == [1, 2, 3, 4]
    assert log.unreadable == 0


def test_two_sites_of_one_name_are_named_when_the_run_goes_on(quick: MakeConfig) -> None:
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(2))

    class Twins(LoopbackGrid):
        def __init__(self, sites: int) -> None:
            super().__init__(sites)
            self.connect(200, 0)

    record = carry_out(quick(method="fedavg", resume="auto"), Twins)
    named = {site for (stage, site), reason in record.reasons.items() if "another connected site is called" in reason}
    assert len(named) == 1
    assert named <= {"node 100", "node 200"}


def test_a_run_that_died_before_its_first_checkpoint_starts_again(quick: MakeConfig, tmp_path: Path) -> None:
    whole = quick(method="fedavg", out=str(tmp_path / "whole"))
    carry_out(whole)
    with pytest.raises(Stop):
        carry_out(quick(method="fedavg"), dies_in(1))
    assert not carry_out(quick(method="fedavg", resume="auto")).of(RunResumed)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()


def test_no_checkpoint_is_no_reason_to_stop(quick: MakeConfig, tmp_path: Path) -> None:
    config = quick(method="fedavg")
    directory = open_run(config)
    (directory / "checkpoint").write_text("in the way")
    record = Record()
    conduct(LoopbackGrid(config.sites), config, [*run_listeners(directory), record], directory=directory)
    assert [event.round_number for event in record.of(CheckpointFailed)] == [1, 2, 3, 4]
    assert record.of(RunEnded)[0].outcome == "finished"


def test_checkpoints_may_be_rare_or_off(quick: MakeConfig, tmp_path: Path) -> None:
    class Watching:
        def __init__(self, folder: Path) -> None:
            self.folder = folder
            self.seen: set[Any] = set()

        def hear(self, event: Event) -> None:
            if self.folder.exists():
                self.seen |= {path.name for path in self.folder.iterdir()}

    for every, expected in ((0, set()), (3, {"round-000003.checkpoint", "round-000004.checkpoint"})):
        config = quick(method="fedavg", checkpoint=every, out=str(tmp_path / f"every {every}"))
        directory = open_run(config)
        watching = Watching(directory / "checkpoint")
        conduct(LoopbackGrid(config.sites), config, [*run_listeners(directory), watching], directory=directory)
        assert watching.seen == expected


@pytest.mark.federation
def test_killed_at_any_moment_a_run_can_be_resumed_to_the_same_bits() -> None:
    """Every event of a small run, and every moment around a write, is a kill point (tests/support/kill_points.py)."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.kill_points"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 failures" in result.stdout


def test_metrics_that_could_not_be_written_leave_the_next_round_without_a_checkpoint_and_are_not_lost(
    quick: MakeConfig, tmp_path: Path
) -> None:
    """The disk is full for those of round 2, which are told in round 3, and for those of the last."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    carry_out(quick(method="fedavg", out=str(whole)))
    config = quick(method="fedavg")
    directory = open_run(config)
    metrics, aside = run / "metrics.csv", tmp_path / "aside"

    class Disk:
        def hear(self, event: Event) -> None:
            if isinstance(event, StageStarted) and (event.stage, event.round_number) in (("train", 3), ("evaluate", 4)):
                metrics.rename(aside)
                metrics.symlink_to(FULL)
            # There is room again after the checkpoint would have been written, and after the last round.
            last = isinstance(event, RoundFinished) and event.round_number == 4
            if isinstance(event, CheckpointFailed) or last:
                metrics.unlink()
                aside.rename(metrics)

    record = Record()
    conduct(LoopbackGrid(config.sites), config, [*run_listeners(directory), Disk(), record], directory=directory)
    assert [event.round_number for event in record.of(CheckpointFailed)] == [3]
    assert metrics.read_bytes() == (whole / "metrics.csv").read_bytes()
    assert json.loads((run / "run.json").read_text())["outcome"] == "finished"


def test_a_site_may_be_called_as_an_array_is(small_config: MakeConfig, tmp_path: Path) -> None:
    """Sites' names are keys of the state."""
    out = tmp_path / "run"
    config = small_config(method="fedavg", rounds=1, out=str(out))
    record = carry_out(config, lambda sites: LoopbackGrid(sites, node_configs={0: {"site": "array"}}))
    assert record.of(RunEnded)[0].outcome == "finished"
    assert not record.of(CheckpointFailed)


def test_a_run_that_ends_early_keeps_the_models_it_has_trained(small_config: MakeConfig, tmp_path: Path) -> None:
    """Also if they were not tested yet, and then their card claims nothing."""
    out = tmp_path / "run"
    config = small_config(method="fedavg", rounds=4, test__every=4, out=str(out))

    def die(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and wire.unpack_task(request.content).round_number == 3:
            raise Stop
        return reply

    with pytest.raises(Stop):
        carry_out(config, lambda sites: LoopbackGrid(sites, fault=die))
    _, card = load_model(out / "models" / "group-0.safetensors")
    assert card.round == 2
    assert card.test is None
