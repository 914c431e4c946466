"""Drift and migration: `python -m benchmarks.drift configs/fashion_mnist.toml --out runs/drift`.

Runs every variant under the same scenario and seeds, and writes a table and a picture: accuracy in the round before the
drift, in the first round after it and at the end; who moved where. Runs that are already there are not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cli.arguments import add_config, read_config
from cli.simulation.engine import simulate
from cli.simulation.preflight import prepare
from client.data import load_site
from client.identity import Identity
from common.config import Config, SettingsError
from common.drift import read_scenario

# Title, and what is set for it.
VARIANTS: dict[str, dict[str, object]] = {
    "FMCL, guarded": {"method": "fmcl", "migration": "guarded"},
    "FMCL, published rule": {"method": "fmcl", "migration": "fedcm"},
    "FMCL, no migration": {"method": "fmcl", "migration": "off"},
    "FedCM, guarded": {"method": "fedcm", "migration": "guarded"},
    "FedCM, published rule": {"method": "fedcm", "migration": "fedcm"},
}
# Unless the configuration has another one.
SCENARIO = Path(__file__).parents[1] / "configs" / "drift" / "swap.toml"
# Rounds within which a drifted site should have found its place, the first round with changed data being the first.
IN_TIME = 3


@dataclass(frozen=True)
class Outcome:
    """What one run shows. Accuracies by round, from round 1 on."""

    accuracy: list[float]
    drift_round: int
    drifted: int
    right_in_time: int
    right_at_the_end: int
    innocent_moved: int
    # Accuracy at the end of the same run without drift.
    stable: float

    @property
    def before(self) -> float:
        return self.accuracy[self.drift_round - 2]

    @property
    def after(self) -> float:
        return self.accuracy[self.drift_round - 1]

    @property
    def end(self) -> float:
        return self.accuracy[-1]

    @property
    def loss_permille(self) -> float:
        """1000 (stable − end) / stable, the paper's measure."""
        return 1000 * (self.stable - self.end) / self.stable


def configured(base: Config, variant: str, seed: int, out: Path) -> Config:
    chosen = VARIANTS[variant]
    migration = base.migration.model_copy(update={"rule": chosen["migration"]})
    name = variant.lower().replace(", ", "-").replace(" ", "-")
    return base.model_copy(
        update={
            "method": chosen["method"], "migration": migration, "seed": seed, "out": str(out / f"{name}-seed{seed}"),
        }
    )  # fmt: skip


def finished(config: Config) -> bool:
    """Whether this very run is there already."""
    directory = Path(config.out)
    if not (directory / "summary.json").exists():
        return False
    kept, summary = (
        json.loads((directory / name).read_text(encoding="utf-8")) for name in ("run.json", "summary.json")
    )
    if kept["config"] != json.loads(config.model_dump_json()):
        raise SettingsError(f"{directory} holds a run with other settings: choose another --out or remove it")
    return bool(summary["outcome"] == "finished")


def label_sets(config: Config, round_number: int) -> dict[str, frozenset[int]]:
    """The classes that each site's training data hold in a round."""
    sets = {}
    for site in range(config.sites):
        identity = Identity(f"{site:03d}", None, (site, config.sites), None)
        counts = load_site(identity, config.for_site(), round_number, config.rounds).class_counts
        sets[identity.name] = frozenset(counts.nonzero()[0].tolist())
    return sets


def first_drift(config: Config) -> int:
    first = min(event.first_round(config.rounds) for event in config.drift)
    if first < 2:
        raise SettingsError("the drift must come after round 1, or there is no accuracy before it")
    return first


def outcome_of(config: Config, stable: Config) -> Outcome:
    drift_round = first_drift(config)
    before, after = label_sets(config, drift_round - 1), label_sets(config, config.rounds)
    drifted = {site for site in before if before[site] != after[site]}
    accuracy, groups = read_metrics(Path(config.out))

    def right(round_number: int) -> int:
        """How many drifted sites share a group with most undisturbed sites that have the same classes."""
        now = groups[min(round_number, config.rounds) - 1]
        homes = {}
        for kind in set(after.values()):
            votes = Counter(now[site] for site in sorted(now) if site not in drifted and after[site] == kind)
            homes[kind] = votes.most_common(1)[0][0] if votes else None
        return sum(site in now and now[site] == homes[after[site]] for site in drifted)

    moved = {site for site in before if len({labels[site] for labels in groups if site in labels}) > 1}
    return Outcome(
        accuracy,
        drift_round,
        len(drifted),
        right(drift_round + IN_TIME - 1),
        right(config.rounds),
        len(moved - drifted),
        read_metrics(Path(stable.out))[0][-1],
    )


def read_metrics(directory: Path) -> tuple[list[float], list[dict[str, str]]]:
    """Pooled accuracy, and each site's group, round by round."""
    accuracy: list[float] = []
    groups: list[dict[str, str]] = []
    with (directory / "metrics.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["scope"] == "overall":
                accuracy.append(float(row["accuracy"]))
                groups.append({})
            elif row["scope"] == "site":
                groups[-1][row["name"]] = row["group"]
    return accuracy, groups


def table(outcomes: dict[str, list[Outcome]]) -> str:
    lines = [
        f"| variant | before | just after | end | Δ‰ | drifted sites right within {IN_TIME} rounds | at the end "
        "| innocent sites moved |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for variant, runs in outcomes.items():
        figures = [_spread([getattr(run, key) for run in runs]) for key in ("before", "after", "end")]
        delta = " · ".join(f"{run.loss_permille:.1f}" for run in runs)
        drifted = sum(run.drifted for run in runs)
        counts = [
            f"{sum(getattr(run, key) for run in runs)} of {drifted}" for key in ("right_in_time", "right_at_the_end")
        ]
        innocent = sum(run.innocent_moved for run in runs)
        lines.append(f"| {variant} | {' | '.join(figures)} | {delta} | {' | '.join(counts)} | {innocent} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def picture(outcomes: dict[str, list[Outcome]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    # Variants that form the same groups give the same curve: the later ones are thinner, so that both can be seen.
    styles = [("-", 4.0), ("-", 4.0), ("-", 1.6), ("--", 1.6), ("--", 1.6)]
    for (variant, runs), (style, width) in zip(outcomes.items(), styles, strict=True):
        mean = [statistics.mean(values) for values in zip(*(run.accuracy for run in runs), strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, linestyle=style, linewidth=width, label=variant)
    first = next(iter(outcomes.values()))[0]
    axes.axvline(first.drift_round - 0.5, color="grey", linewidth=0.8)
    axes.annotate("drift", (first.drift_round - 0.5, axes.get_ylim()[0]), xytext=(3, 3), textcoords="offset points")
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, pooled over sites")
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_config(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the run directories, table.md and drift.png"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    base = read_config(options)
    if not base.drift:
        base = base.model_copy(update={"drift": read_scenario(str(SCENARIO))})
    first_drift(base)
    outcomes: dict[str, list[Outcome]] = {variant: [] for variant in VARIANTS}
    for seed in options.seeds:
        for variant in VARIANTS:
            config = prepare(configured(base, variant, seed, options.out.absolute()))
            stable = config.model_copy(update={"drift": (), "out": f"{config.out}-stable"})
            for one in (config, stable):
                if not finished(one) and simulate(one) != "finished":
                    raise SystemExit(1)
            outcomes[variant].append(outcome_of(config, stable))
    text = table(outcomes)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    picture(outcomes, options.out / "drift.png")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except SettingsError as error:
        sys.exit(f"benchmarks.drift: {error}")
