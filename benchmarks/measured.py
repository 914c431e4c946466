"""What is measured of a federation of processes on this machine, and how: memory and CPU seconds, seen from outside."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.federation import descendants

_LOOK = 5.0  # seconds between two looks at the memory: a look takes the kernel a while
_ROLES = {
    "deployment.superlink": "SuperLink",
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "ServerApp",
    "deployment.supernode": "SuperNodes",
    "flower-supernode": "SuperNodes",
    "benchmarks.many_sites": "SuperNodes",
    "client.executor": "executor and tasks",
    "flower-superexec": "SuperExec and tasks",
}


@dataclass(frozen=True)
class Measured:
    """Of one run: seconds for the signatures and per round, most memory of all sites together, and CPU seconds a round.

    `training` is what the sites said they were at work in each round, all of them together; `down` and `up` are the
    megabytes that a site is sent in a round, and sends.
    """

    signatures: float
    rounds: list[float]
    site_megabytes: float
    cpu: dict[str, float]
    training: list[float]
    down: float = 0.0
    up: float = 0.0


def cpu_seconds(*pids: int) -> dict[str, float]:
    """CPU seconds so far, by what they were for, of all below these processes, those that have ended among them."""
    total: dict[str, float] = {}
    for pid, command in (family for one in pids for family in descendants(one).items()):
        role = next((role for word, role in _ROLES.items() if word in command), "")
        with suppress(OSError):
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            if role:
                total[role] = total.get(role, 0.0) + sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return total


class Meter:
    """The most memory that a process and all below it take; pages that several of them share are counted once."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._done = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(_LOOK):
            total = 0
            for pid in (self._pid, *descendants(self._pid)):
                with suppress(OSError):
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            self._peak = max(self._peak, total)

    def stop(self) -> float:
        """Return the peak in megabytes."""
        self._done.set()
        self._thread.join()
        return self._peak / 1000
