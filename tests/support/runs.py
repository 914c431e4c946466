"""Whole runs over the loopback Grid, and what can be made to go wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Error, Message

from common import wire
from common.config import Config
from common.extras import Network
from server.app import conduct
from server.history.events import Event, SiteLeftOut
from server.listeners import run_listeners
from tests.support.loopback import SUPERLINK, Fault, LoopbackGrid

MakeConfig = Callable[..., Config]


class Record:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def reasons(self) -> dict[tuple[str, str], str]:
        return {(event.stage, event.site): event.reason for event in self.of(SiteLeftOut)}


def run(config: Config, grid: LoopbackGrid | None = None, **grid_options: object) -> tuple[Record, LoopbackGrid]:
    grid = grid or LoopbackGrid(config.sites, **grid_options)  # type: ignore[arg-type]
    record = Record()
    conduct(grid, config, [record])
    return record, grid


def run_to_disk(config: Config, path: Path, **grid_options: object) -> Path:
    conduct(
        LoopbackGrid(config.sites, **grid_options),  # type: ignore[arg-type]
        config,
        run_listeners(made(path)),
        directory=path,
    )
    return path


def made(path: Path) -> Path:
    """An empty run directory."""
    (path / "models").mkdir(parents=True)
    return path


def on(stage: str, site: int, change: Callable[[Message, Message], Message | None]) -> Fault:
    """Apply `change` to the replies of one site in one stage."""

    def fault(index: int, request: Message, reply: Message) -> Message | None:
        hit = index == site and request.metadata.message_type.startswith(stage)
        return change(request, reply) if hit else reply

    return fault


def update_in(reply: Message) -> wire.Update:
    """The update that a reply carries, of a method that sends nothing beside it."""
    return wire.unpack_update(reply.content, declared={}, network=Network({}, 0), limit_mb=100)


def altered(reply: Message, update: wire.Update) -> Message:
    """The reply with another update; what it says of the test is left as it is."""
    reply.content.update(wire.pack_update(update))
    return reply


def failed(request: Message, reply: Message) -> Message:
    """What Flower sends in the place of a node that is gone: an error from the SuperLink."""
    error = Message(Error(code=5, reason="node unavailable"), reply_to=request)
    error.metadata.__dict__["_src_node_id"] = SUPERLINK
    return error


def kept_model(folder: Path) -> Path:
    """The model that a site kept in its folder of the one run it took part in."""
    return next(folder.glob("run-*/model.safetensors"), folder / "run-none" / "model.safetensors")
