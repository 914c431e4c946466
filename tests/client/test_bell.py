"""The bell between SuperNodes and their executor: who rang, and a signal that says so."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from client.bell import Bell, ring

ROOT = Path(__file__).parents[2]


LISTENER = """
import signal, sys
from pathlib import Path
from client.bell import RUNG, Bell
signal.pthread_sigmask(signal.SIG_BLOCK, (RUNG,))
bell = Bell(Path(sys.argv[1]))
assert bell.rung() == set() and signal.sigtimedwait((RUNG,), 0) is None
print("listening", flush=True)
woken = signal.sigtimedwait((RUNG,), 60)
print(woken is not None, sorted(bell.rung()), sorted(bell.rung()), flush=True)
"""


def test_a_ring_wakes_who_listens_and_says_who_rang(tmp_path: Path) -> None:
    # In a process with one thread, as the executor is.
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(tmp_path / "bell")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        ring(tmp_path / "bell", "127.0.0.1:1")
        assert listener.stdout.readline() == "True ['127.0.0.1:1'] []\n"


def test_hundreds_may_ring_before_anybody_listens(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    for port in range(1000):
        ring(tmp_path / "bell", f"127.0.0.1:{port}")
    assert len(bell.rung()) == 1000


def test_nobody_else_may_ring_and_a_bell_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    ring(tmp_path / "bell", "127.0.0.1:1")
    bell = Bell(tmp_path / "bell")
    assert stat.S_IMODE((tmp_path / "bell").stat().st_mode) == 0o600
    # The executor was started again.
    assert Bell(tmp_path / "bell").rung() == bell.rung() == set()
