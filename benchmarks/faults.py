"""The table of faults in docs/deployment.md: what happens in a real federation when things go wrong, and how soon.

Run with `python -m benchmarks.faults` (some minutes; root, for the disk that is filled), or with the `outcomes.json`
that `tests/deployment/test_faults.py` left in its folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.faults import OUTCOMES, stage_faults


def main(arguments: Sequence[str]) -> int:
    """Stage every fault, unless that was done already, and print what came of it."""
    if arguments:
        print_table(Path(arguments[0]))
        return 0
    with tempfile.TemporaryDirectory(prefix="coterie-faults-") as folder:
        stage = stage_faults(Path(folder))
        print_table(Path(folder) / OUTCOMES)
    return int(stage.run.process.returncode != 0)


def print_table(path: Path) -> None:
    """Print outcomes as Markdown, without the folder they happened in."""
    print("| fault | named | in these words | after |")
    print("|---|---|---|---:|")
    for outcome in json.loads(path.read_text()):
        said = outcome["said"].replace("|", "\\|").replace(str(path.parent), "…")
        print(f"| {outcome['fault']} | {outcome['named']} | {said} | {outcome['seconds']:.0f} s |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
