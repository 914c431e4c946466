"""Flower's SuperNode as a site runs it: `python -m cli.deployment.supernode` takes the same options.

It says when this machine's clock is not the coordinator's. A run's bundle comes with its first message; Flower's
SuperNode would open it to read the app's settings. Here it lies where it is, unread, unless the first option is
`--open-bundles`, for sites that run foreign code.
"""

from __future__ import annotations

import sys

from client.flower import clock, supernode

OPEN_BUNDLES = "--open-bundles"


def main() -> None:
    """Run Flower's `flower-supernode`."""
    if sys.argv[1:2] == [OPEN_BUNDLES]:
        del sys.argv[1]
    else:
        supernode.leave_bundles_closed()
    clock.compare_clocks()
    supernode.run_supernode()


if __name__ == "__main__":
    main()
