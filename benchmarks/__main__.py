"""Run every benchmark, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("clustering", "embedding", "rounds", "aggregation", "migration", "suite", "heads", "report")


def main() -> int:
    """Run the benchmarks in turn; return 1 if any of them failed."""
    failed = False
    for name in NAMES:
        print(f"\n## {name}\n", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
