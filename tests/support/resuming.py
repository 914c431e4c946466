"""A run that is cut off in a round and goes on: what it left must be what an undisturbed one leaves, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from common import wire
from server.app import conduct
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, made, run_to_disk


class Stop(Exception):
    """The server dies."""


def check_resumed(make: MakeConfig, folder: Path, *, stop: int, kind: str = "train", **settings: object) -> None:
    """Compare a run that dies at the first answer of a kind in round `stop`, and is resumed, with one that does not."""
    whole = run_to_disk(make(**settings), folder / "whole")

    def die(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == kind and wire.unpack_task(request.content).round_number == stop:
            raise Stop
        return reply

    out = made(folder / "broken")
    config = make(**settings)
    with pytest.raises(Stop):
        conduct(LoopbackGrid(config.sites, fault=die), config, run_listeners(out), directory=out)
    config = make(**settings, resume="auto", out=str(out))
    conduct(LoopbackGrid(config.sites), config, run_listeners(out), directory=out)
    assert (out / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    for model in sorted((whole / "models").iterdir()):
        assert (out / "models" / model.name).read_bytes() == model.read_bytes(), model.name
