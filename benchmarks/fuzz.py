"""Break files of others as often as one likes, and see that every reader refuses them in words.

Run with `python -m benchmarks.fuzz --inputs 1000000`. What got through is printed with where it came from, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.support.fuzz import attempt


def main(arguments: Sequence[str]) -> int:
    """Try so many inputs and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers with this in their name")
    options = parser.parse_args(arguments)
    began = time.process_time()
    outcome = attempt(options.inputs, options.seed, options.only)
    seconds = time.process_time() - began
    for what, count in outcome.through.most_common():
        print(f"{count} × {what}\n    {outcome.examples[what]}")
    through = outcome.through.total()
    print(f"{outcome.inputs} inputs, {outcome.refused} refused in words, {through} got through, {seconds:.0f} CPU s")
    return int(through > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
