"""The table of faults in docs/deployment.md: what happens in a real federation when things go wrong, and how soon.

Run with `python -m benchmarks.faults` (some minutes; root, for the disk that is filled).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.faults import stage_faults


def main() -> int:
    """Stage every fault and print what came of it."""
    with tempfile.TemporaryDirectory(prefix="coterie-faults-") as folder:
        stage = stage_faults(Path(folder))
    print("| fault | named | in these words | after |")
    print("|---|---|---|---:|")
    for outcome in stage.outcomes.values():
        said = outcome.said.replace("|", "\\|").replace(str(stage.root), "…")
        print(f"| {outcome.fault} | {outcome.named} | {said} | {outcome.seconds:.0f} s |")
    return int(stage.run.process.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
