"""Flower's SuperNode as a site runs it: `python -m cli.deployment.supernode` takes the same options.

It says when this machine's clock is not the coordinator's. A run's bundle comes with its first message; Flower's
SuperNode would open it to read the app's settings. Here it lies where it is, unread, unless the first option is
`--open-bundles`, for sites that run foreign code. The next may be `--bell FILE ADDRESS`: where the executor hears of a
question, and as whose.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from client import bell
from client.flower import clock, supernode

OPEN_BUNDLES = "--open-bundles"
BELL = "--bell"


def main() -> None:
    """Run Flower's `flower-supernode`."""
    if sys.argv[1:2] == [OPEN_BUNDLES]:
        del sys.argv[1]
    else:
        supernode.leave_bundles_closed()
    ring = _no_bell
    if sys.argv[1:2] == [BELL]:
        ring = partial(bell.ring, Path(sys.argv[2]), sys.argv[3])
        del sys.argv[1:4]
    supernode.follow_work(ring)
    clock.compare_clocks()
    supernode.run_supernode()


def _no_bell() -> None:
    """Nobody listens: the executor looks by itself."""


if __name__ == "__main__":
    main()
