"""What holds for every way to train: nothing counted means nothing changed, and sites may come, go and be silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from common import wire
from server.app import conduct
from server.history import checkpoint
from server.history.events import MemoryLost, RoundFinished, RoundTrained, SitePlaced
from server.listeners import run_listeners
from server.methods import RULES
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, failed, made

SMALL = {"sites": 3, "rounds": 3, "train__lr": 0.01, "pfedme__rate": 0.02, "round__start_timeout": 0.3}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return np.array_equal(one, other)


@pytest.mark.parametrize("method", sorted(RULES))
def test_a_round_without_a_reply_changes_nothing_and_a_newcomer_starts_like_the_others(
    small_config: MakeConfig, tmp_path: Path, method: str
) -> None:
    """Everybody's answer of round 2 is lost; a site joins before round 3."""
    config, out = small_config(method=method, **SMALL), made(tmp_path / "run")

    def lose(index: int, request: Message, reply: Message) -> Message:
        train = request.metadata.message_type == "train"
        return failed(request, reply) if train and wire.unpack_task(request.content).round_number == 2 else reply

    grid = LoopbackGrid(3, fault=lose)
    grid.disconnect(102)

    class Watch(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 2:
                grid.connect(102, 2)
                one = checkpoint.read(out / "checkpoint" / "round-000001.checkpoint")["strategy"]
                states.append(one)

    states: list[dict[str, Any]] = []
    record = Watch()
    conduct(grid, config, [*run_listeners(out), record], directory=out)
    first, second, third = record.of(RoundTrained)
    assert same(first.models, second.models)
    after = checkpoint.read(out / "checkpoint" / "round-000002.checkpoint")["strategy"]
    assert same(states[0]["rule"], after["rule"])
    assert same(states[0]["accepted"], after["accepted"])
    assert not same(second.models, third.models)
    assert [event.site for event in record.of(SitePlaced)] == ["002"]
    assert "002" in record.of(RoundFinished)[-1].sites
    assert not record.of(MemoryLost)
