"""One process at a time: who has a lock is named, and a dead holder holds nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from common.config import SettingsError
from common.lock import alone

HOLD = """
import sys, time
from pathlib import Path
from common.lock import alone
with alone(Path(sys.argv[1]), "it") as descriptor:
    if len(sys.argv) > 2:
        import subprocess
        child = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor], stdout=subprocess.DEVNULL)
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""


def hold(path: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, str(path), *more], stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_who_comes_second_is_told_who_is_there_and_since_when(tmp_path: Path) -> None:
    with hold(tmp_path / "lock") as process:
        try:
            assert first_line(process) == "held"
            with (
                pytest.raises(SettingsError, match=rf"it is in use by process {process.pid} on this machine, since 20"),
                alone(tmp_path / "lock", "it"),
            ):
                raise AssertionError("two hold it")
        finally:
            process.kill()
    # Killed, not ended in order: what it wrote of itself is still there, and in nobody's way.
    assert json.loads((tmp_path / "lock").read_text())["pid"] == process.pid
    with alone(tmp_path / "lock", "it"):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / "lock").read_text() == ""
    with alone(tmp_path / "lock", "it"):
        pass


def test_what_a_dead_process_left_behind_holds_the_lock_for_it(tmp_path: Path) -> None:
    with hold(tmp_path / "lock", "child") as process:
        child = int(first_line(process))
        try:
            assert first_line(process) == "held"
            process.kill()
            process.wait()
            with (
                pytest.raises(SettingsError, match=rf"what process {process.pid} left behind.*fuser"),
                alone(tmp_path / "lock", "it"),
            ):
                raise AssertionError("two hold it")
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"pid": 1, "host": "elsewhere", "since": "2026"}', "process 1 on elsewhere, since 2026: .* end it there"),
        ("", "another process"),
        ("[" * 5000, "another process"),
        ('{"pid": "x", "host": 1}', "another process"),
        (f'{{"pid": 1, "host": "{socket.gethostname()}"}}', "another process"),
    ],
)
def test_whatever_stands_in_the_file_somebody_is_named(tmp_path: Path, written: str, told: str) -> None:
    with alone(tmp_path / "lock", "it"):
        (tmp_path / "lock").write_text(written)
        with pytest.raises(SettingsError, match=told), alone(tmp_path / "lock", "it"):
            raise AssertionError("two hold it")
