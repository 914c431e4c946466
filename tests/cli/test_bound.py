"""What a supervisor starts ends with it, however the supervisor ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cli.deployment.bound import bound
from tests.support.federation import ROOT, alive, until

_SUPERVISOR = """
import subprocess, sys, time
from cli.deployment.bound import bound
started = subprocess.Popen(bound([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]),
                           stdout=subprocess.PIPE)
started.stdout.readline()
print(started.pid, flush=True)
time.sleep(600)
"""


def test_kill_9_of_a_supervisor_leaves_nothing_behind() -> None:
    """As `kill -9` of `coterie site`, which left its SuperNode and executor on their ports."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert supervisor.stdout is not None
    child = int(supervisor.stdout.readline())
    assert alive(child)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    until(lambda: not alive(child), 30, "it ends with its supervisor")
    supervisor.stdout.close()


def test_what_was_started_by_somebody_who_is_gone_does_not_begin(tmp_path: Path) -> None:
    command = bound(["touch", str(tmp_path / "begun")])
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    command[command.index(str(os.getpid()))] = gone.stdout.decode().strip()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert not (tmp_path / "begun").exists()
