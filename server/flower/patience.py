"""How a ServerApp speaks to its SuperLink: it waits by a request that is held until an answer comes, and what is small
rides along with the letters. With a SuperLink that knows of neither, all is as Flower has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common.riding import Carriage, gather

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

# In the place of a message's name, which is a digest: a question for answers that names none, and how long to wait.
_WAIT = "wait "
_LONGEST = 1.0  # seconds; meanwhile the ServerApp hears of nothing else


def a_wait(seconds: float) -> str:
    """Return what is asked for in the place of an answer by one who would wait."""
    return f"{_WAIT}{seconds:.3f}"


def is_wait(asked: str) -> bool:
    """Whether somebody would wait."""
    return asked.startswith(_WAIT)


def seconds_of(asked: str) -> float:
    """How long somebody would wait, at most as long as anybody may."""
    try:
        seconds = float(asked.removeprefix(_WAIT))
    except ValueError:
        return 0.0
    return min(seconds, _LONGEST) if seconds > 0 else 0.0


def waiting_room(grid: Grid) -> Callable[[float], bool] | None:
    """Return what waits up to so many seconds for the next answer, and says whether it did.

    None: the answers of this Grid are not those of a SuperLink.
    """
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        return None

    def wait(seconds: float) -> bool:
        # A SuperLink that knows nothing of waiting says that there is no such message.
        return not list(grid.pull_messages([a_wait(min(seconds, _LONGEST))]))

    return wait


def carry(grid: Grid) -> Callable[[Message], Message]:
    """Let small parts of messages ride along from now on; return what has to see a message before it is sent."""
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        return lambda message: message
    carriage = Carriage(grid._runtime_client)
    grid.__dict__["_client"] = carriage

    def see(message: Message) -> Message:
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute

        with no_object_id_recompute():
            carriage.parts = gather(get_all_nested_objects(message))
        return message

    return see
