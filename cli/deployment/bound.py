"""Runs a program that ends with the process that started it: `python -m cli.deployment.bound PARENT PROGRAM …`.

A supervisor that is killed can end nobody any more; the kernel then asks the program to end. Linux only, and elsewhere
the program is run as it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(command: Sequence[str]) -> list[str]:
    """The command that runs `command` for as long as this process is there."""
    # -P: modules that lie in the working folder are not for it.
    return [sys.executable, "-P", "-m", "cli.deployment.bound", str(os.getpid()), *command]


def main() -> None:
    """Become the program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # It may have ended before it could be asked for.
        if os.getppid() != parent:
            sys.exit(0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
