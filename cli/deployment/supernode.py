"""Flower's SuperNode for a site that runs its own code: `python -m cli.deployment.supernode` takes the same options.

A run's bundle comes with its first message. Flower's SuperNode would open it to read the app's settings; here it lies
where it is, unread.
"""

from __future__ import annotations

from client.flower import supernode


def main() -> None:
    """Run Flower's `flower-supernode`."""
    supernode.leave_bundles_closed()
    supernode.run_supernode()


if __name__ == "__main__":
    main()
