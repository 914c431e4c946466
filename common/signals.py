"""What a signal's handler may do: tell somebody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def set_by_handlers(event: threading.Event) -> Iterator[Callable[[], None]]:
    """Give what sets an event from within a signal's handler.

    `Event.set` there waits for itself for ever, where the signal came while the main thread was about to wait for the
    event: so another thread sets it. Nothing but a simple queue may be used at any moment.
    """
    told: SimpleQueue[bool] = SimpleQueue()

    def pass_on() -> None:
        while told.get():
            event.set()

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield lambda: told.put(True)
    finally:
        told.put(False)
        thread.join()
