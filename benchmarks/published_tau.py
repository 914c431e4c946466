"""FedCM's rule as published, for every threshold: `python -m benchmarks.published_tau configs/drift_digits.toml`.

The paper does not give τ. Four of 20 sites change kind all at once, as in `benchmarks.drift_table`; for each τ: how
many of them are in the right group at the end, how many moves there were, and how many unchanged sites were moved.
"""

from __future__ import annotations

import argparse
import logging

from benchmarks.drift_table import DRIFTED, SITES, WORLDS, configured, result_of
from cli.arguments import add_config, read_config
from cli.simulation.preflight import prepare
from common.config import with_values

WORLD, DRIFT = "disjoint labels", "sudden"
TAUS = (-0.95, -0.8, -0.6, -0.4, -0.2, 0.0, 0.3)


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    add_config(parser)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    base = read_config(options)
    print("| τ | drifted sites right | moves | innocent sites moved | accuracy at the end |")
    print("|---:|---:|---:|---:|---:|")
    for rule, tau in [*(("fedcm", tau) for tau in TAUS), ("guarded", 0.0), ("off", 0.0)]:
        config = configured(base, WORLD, DRIFT, "FedCM", rule, options.seed)
        result = result_of(prepare(with_values(config, {"migration.tau": tau})), WORLDS[WORLD], DRIFT)
        name = f"{tau:g}" if rule == "fedcm" else {"guarded": "guarded rule", "off": "no migration"}[rule]
        print(
            f"| {name} | {result.right} of {len(DRIFTED)} | {result.moves} "
            f"| {result.innocents} of {SITES - len(DRIFTED)} | {result.accuracy:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
