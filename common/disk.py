"""Making sure that something is on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def gone_if_it_fails(*paths: Path) -> Iterator[None]:
    """Remove files that could not be written to their end: half of one would keep the room that a full disk lacks."""
    try:
        yield
    except OSError:
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Bring a file's content, or a folder's names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
