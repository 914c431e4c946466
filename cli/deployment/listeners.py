"""Which process of this machine listens at a port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"  # the state of a socket, as the kernel writes it
_SHOWN = 100  # characters of a command


def who_listens(port: int) -> str:
    """Name the process that listens at a port of this machine; empty if that is not to be seen, as of another user."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if sockets:
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with suppress(OSError):
                if any(os.readlink(entry) in sockets for entry in folder.iterdir()):
                    command = (folder.parent / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
                    return f"process {folder.parent.name} ({command[:_SHOWN]})"
    return ""


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENS and int(cells[1].rpartition(":")[2], 16) == port:
                    yield cells[9]
