"""Runs whose updates travel in fewer bytes: what arrives, what is remembered, what is refused, the same bits again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from common import wire
from common.config import Config, SettingsError, parse
from common.state import State
from server.app import conduct
from server.history.events import MemoryLost, ReplyAccepted, RoundFinished, RoundTrained, SiteLeftOut
from server.listeners import run_listeners
from server.methods import settle
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, made, on, run, run_to_disk


def model(record: Record) -> State:
    return record.of(RoundTrained)[-1].models[0]


def distance(one: State, other: State) -> float:
    return float(max(np.abs(one[name].astype(np.float64) - other[name]).max() for name in one))


def received(record: Record) -> int:
    return sum(event.bytes_received for event in record.of(ReplyAccepted) if event.stage == "train")


def test_a_round_is_the_same_within_a_step_from_a_quarter_of_the_bytes(small_config: MakeConfig) -> None:
    runs = {
        precision: run(small_config(method="fedavg", rounds=1, wire__precision=precision))
        for precision in ("float32", "float16", "int8")
    }
    records = {precision: record for precision, (record, _) in runs.items()}
    assert not any(record.of(SiteLeftOut) or record.of(MemoryLost) for record in records.values())
    full, grid = model(records["float32"]), runs["float32"][1]
    (start, *_) = [wire.unpack_model(m.content) for m in grid.pushed if m.metadata.message_type == "train"]
    updates = [wire.unpack_model(m.content) for m in grid.replies if "training" in m.content]
    step = max(distance(update, start) for update in updates) / 127
    assert 0 < distance(model(records["float16"]), full) < distance(model(records["int8"]), full) < step / 2
    # Beside the update travel the figures of a test and the header of the arrays.
    bytes_ = {precision: received(record) for precision, record in records.items()}
    assert bytes_["float16"] < 0.65 * bytes_["float32"]
    assert bytes_["int8"] < 0.45 * bytes_["float32"]


@pytest.mark.parametrize("settings", [{"method": "ifca", "cluster__k": 2}, {"method": "scaffold"}])
def test_every_rule_takes_them(small_config: MakeConfig, settings: dict[str, object]) -> None:
    """No rule knows of it: what it gets is the whole update."""
    full, _ = run(small_config(**settings))
    record, _ = run(small_config(**settings, wire__precision="int8"))
    assert not record.of(SiteLeftOut)
    assert len(record.of(RoundFinished)[-1].sites) == 6
    np.testing.assert_allclose(
        [event.train_loss for event in record.of(RoundTrained)],
        [event.train_loss for event in full.of(RoundTrained)],
        rtol=0.1,
    )


def test_what_a_site_has_not_said_is_what_rounding_took(small_config: MakeConfig, tmp_path: Path) -> None:
    """x of a site of its own is what the server read, and what the site remembers beside it."""
    exact = run(small_config(method="fedavg", sites=1, rounds=1))[0]
    out = made(tmp_path / "run")
    config, record = small_config(method="fedavg", sites=1, rounds=1, wire__precision="int8"), Record()
    conduct(LoopbackGrid(1), config, [record], directory=out)
    (file,) = (out / "memory" / "000" / "unsaid").iterdir()
    unsaid = load_file(file)
    assert unsaid.keys() == model(exact).keys()
    for name, array in unsaid.items():
        np.testing.assert_allclose(model(record)[name] + array, model(exact)[name], atol=1e-7)
    assert max(np.abs(array).max() for array in unsaid.values()) > 1e-6


def test_a_site_that_has_forgotten_says_so_and_goes_on(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(method="fedavg", rounds=2, wire__precision="int8")
    out, record = made(tmp_path / "run"), Record()

    def forget(index: int, request: Message, reply: Message) -> Message:
        if index == 3 and request.metadata.message_type == "train":
            for path in (out / "memory" / "003" / "unsaid").iterdir():
                path.unlink()
        return reply

    conduct(LoopbackGrid(config.sites, fault=forget), config, [record], directory=out)
    assert [(event.round_number, event.site) for event in record.of(MemoryLost)] == [(2, "003")]
    assert not record.of(SiteLeftOut)


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = {"method": "fedavg", "rounds": 6, "train__fraction": 0.5, "checkpoint": 4, "wire__precision": "int8"}
    whole = run_to_disk(small_config(**settings), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and wire.unpack_task(request.content).round_number == 6:
            raise Stop
        return reply

    out = made(tmp_path / "broken")
    config = small_config(**settings)
    with pytest.raises(Stop):
        conduct(LoopbackGrid(config.sites, fault=stop), config, run_listeners(out), directory=out)
    config = small_config(**settings, resume="auto", out=str(out))
    conduct(LoopbackGrid(config.sites), config, run_listeners(out), directory=out)
    assert (out / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("scale", "says"),
    [(np.nan, "not finite, or below 0"), (1e30, "blew up"), (3e38, "not finite")],
)
def test_a_hostile_scale_is_refused_by_name(small_config: MakeConfig, scale: float, says: str) -> None:
    def spoil(request: Message, reply: Message) -> Message:
        arrays = wire.unpack_model(reply.content, "int8")
        scales = {name: np.full_like(array, scale) for name, array in arrays.items() if name.startswith("scales of ")}
        reply.content["model"] = wire.pack_arrays(arrays | scales)
        return reply

    record, _ = run(small_config(method="fedavg", rounds=1, wire__precision="int8"), fault=on("train", 0, spoil))
    assert says in record.reasons["train", "000"]
    assert all(np.isfinite(array).all() for array in model(record).values())


@pytest.mark.parametrize(("asked", "sent"), [("int8", "float32"), ("float32", "int8"), ("float16", "int8")])
def test_a_site_that_sends_another_precision_is_refused(small_config: MakeConfig, asked: str, sent: str) -> None:
    """A site knows what it was asked for; one that does otherwise is named."""

    def translate(request: Message, reply: Message) -> Message:
        before = wire.unpack_model(request.content)
        read = wire.lengthen(wire.unpack_model(reply.content, asked), before, asked)  # type: ignore[arg-type]
        arrays = read if sent == wire.FULL else wire.shorten(read, before, {}, sent)[0]  # type: ignore[arg-type]
        reply.content["model"] = wire.pack_arrays(arrays)
        return reply

    record, _ = run(small_config(method="fedavg", rounds=1, wire__precision=asked), fault=on("train", 0, translate))
    assert sent in record.reasons["train", "000"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"aggregate.rule": "secure"}, "masks hide numbers of one and the same unit"),
        ({"round.late": "next", "round.enough": 0.8, "method": "fedavg"}, "no longer has"),
        ({"method": "dc-cfl", "data.input": "embedding", "train.model": "mlp"}, "no updates"),
    ],
)
def test_what_does_not_go_together_is_said(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settle(parse({"wire.precision": "int8", **values}))
    assert settle(parse({"wire.precision": "float16"})).wire.precision == "float16"
    assert Config().wire.precision == wire.FULL
