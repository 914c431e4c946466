"""Every kind of drift in every kind of world: `python -m benchmarks.drift_table --out runs/drift-table`.

20 sites of handwritten digits, four of which change kind, in three worlds (disjoint labels, overlapping labels, two
devices) and five ways (all at once, 60 % and 30 % of the samples, over 10 and over 20 rounds), under FMCL and FedCM,
with migration and without, beside the same run without drift. Runs whose result is there already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from cli.arguments import add_config, read_config
from cli.simulation.one_process import OneProcessGrid
from cli.simulation.preflight import prepare
from client.app import app
from common.config import Config, FlatValue, SettingsError, with_values
from common.drift import DriftEvent
from server.app import conduct
from server.history.events import Event, GroupsFormed, RoundFinished, RunEnded, SiteCleared, SitesMoved

SITES, ROUNDS, FIRST = 20, 40, 13
# Neighbours change kind with each other: one group loses at most one of its members.
DRIFTED = ("000", "001", "007", "008")


@dataclass(frozen=True)
class World:
    """How sites differ: a site's kind is its number modulo `kinds`; what is set for that; how a site changes kind."""

    kinds: int
    settings: dict[str, FlatValue]
    change: str

    def kind(self, site: str) -> int:
        return int(site) % self.kinds

    def other(self, site: str) -> int:
        """The kind that a drifted site changes to: that of the one it is paired with."""
        place = DRIFTED.index(site)
        return self.kind(DRIFTED[place ^ 1])

    def scenario(self, drift: str) -> tuple[DriftEvent, ...]:
        standing = (
            (DriftEvent(kind="invert", at=0, sites=tuple(f"{site:03d}" for site in range(1, SITES, 2))),)
            if self.change == "invert"
            else ()
        )
        if drift == "none":
            return standing
        return (*standing, DriftEvent(kind=self.change, at=FIRST, sites=DRIFTED, **DRIFTS[drift]))  # type: ignore[arg-type]


WORLDS = {
    "disjoint labels": World(5, {"partition.scheme": "disjoint", "partition.groups": 5}, "swap"),
    "overlapping labels": World(
        5, {"partition.scheme": "disjoint", "partition.groups": 5, "partition.overlap": 2}, "swap"
    ),
    # Whoever is inverted twice is as he was: so a site may go from either device to the other.
    "two devices": World(2, {"partition.scheme": "iid"}, "invert"),
}
DRIFTS: dict[str, dict[str, float]] = {
    "sudden": {}, "60 %": {"extent": 0.6}, "30 %": {"extent": 0.3}, "over 10 rounds": {"over": 10},
    "over 20 rounds": {"over": 20},
}  # fmt: skip
METHODS = {"FMCL": "fmcl", "FedCM": "fedcm"}


@dataclass(frozen=True)
class Result:
    """What one run shows at its end: drifted sites in the right group, moves of everybody and of sites that did not
    drift, how many those are, examinations, accuracies in [0, 1]."""

    right: int
    moves: int
    innocent_moves: int
    innocents: int
    examined: int
    accuracy: float
    accuracy_of_drifted: float


class Record:
    """Keeps what a result is made of."""

    def __init__(self) -> None:
        self.homes: dict[str, int] = {}
        self.moved: list[str] = []
        self.examined = 0
        self.last: RoundFinished | None = None
        self.outcome = "failed"

    def hear(self, event: Event) -> None:
        match event:
            case GroupsFormed():
                self.homes = dict(zip(event.sites, event.labels, strict=True))
            case SitesMoved():
                self.moved += event.sites
            case SiteCleared():
                self.examined += 1
            case RoundFinished():
                self.last = event
            case RunEnded():
                self.outcome = event.outcome


def configured(base: Config, world: str, drift: str, method: str, rule: str, seed: int) -> Config:
    here = WORLDS[world]
    values: dict[str, FlatValue] = {
        "method": METHODS[method], "seed": seed, "sites": SITES, "rounds": ROUNDS, "test.every": ROUNDS,
        "checkpoint": 0, "migration.rule": rule, **here.settings,
        # The question is who moves, not how many groups there are.
        "cluster.k": here.kinds if method == "FMCL" else 0,
    }  # fmt: skip
    return with_values(base, values).model_copy(update={"drift": here.scenario(drift)})


def result_of(config: Config, world: World, drift: str) -> Result:
    record = Record()
    stop = threading.Event()
    conduct(OneProcessGrid(app, config.sites, stop), config, [record], stop)
    if record.last is None or record.outcome != "finished":
        raise SystemExit(f"a run ended too early: {record.outcome}")
    labels = record.last.labels
    homes = {
        kind: Counter(
            labels[site] for site in sorted(labels) if site not in DRIFTED and world.kind(site) == kind
        ).most_common(1)[0][0]
        for kind in range(world.kinds)
    }
    changed = drift != "none" and DRIFTS[drift].get("extent", 1.0) > 0.5
    belongs = {site: world.other(site) if changed else world.kind(site) for site in DRIFTED}
    return Result(
        right=sum(labels[site] == homes[kind] for site, kind in belongs.items()),
        moves=len(record.moved),
        innocent_moves=sum(site not in DRIFTED for site in record.moved),
        innocents=len(set(record.moved) - set(DRIFTED)),
        examined=record.examined + len(record.moved),
        accuracy=record.last.overall.accuracy,
        accuracy_of_drifted=statistics.mean(record.last.sites[site].accuracy for site in DRIFTED),
    )


class Results:
    """All results so far, in a file of one line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {tuple(key): Result(**value) for key, value in map(json.loads, lines)}

    def of(self, base: Config, world: str, drift: str, method: str, rule: str, seed: int) -> Result:
        key = (world, drift, method, rule, seed)
        if key not in self._known:
            config = prepare(configured(base, *key))
            self._known[key] = result = result_of(config, WORLDS[world], drift)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, asdict(result)]) + "\n")
            print(*key, result, sep=" | ", file=sys.stderr, flush=True)
        return self._known[key]


def permille(stable: Sequence[Result], end: Sequence[Result]) -> str:
    """Δ‰ = 1000 (stable − end) / stable of each seed, stable being the same run without drift (FedCM's Table 3)."""
    return " · ".join(
        f"{1000 * (calm.accuracy - run.accuracy) / calm.accuracy:.0f}" for calm, run in zip(stable, end, strict=True)
    )


def row(base: Config, results: Results, world: str, drift: str, method: str, seeds: Sequence[int]) -> str:
    def runs(what: str, rule: str) -> list[Result]:
        return [results.of(base, world, what, method, rule, seed) for seed in seeds]

    moved, kept, stable = runs(drift, "guarded"), runs(drift, "off"), runs("none", "off")
    drifted = len(DRIFTED) * len(seeds)
    cells: Iterable[object] = (
        world, drift, method,
        f"{sum(run.right for run in moved)} of {drifted}",
        sum(run.moves - run.innocent_moves for run in moved), sum(run.innocent_moves for run in moved),
        f"{statistics.mean(run.accuracy_of_drifted for run in moved):.3f}",
        f"{statistics.mean(run.accuracy_of_drifted for run in kept):.3f}",
        permille(stable, moved), permille(stable, kept),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "| world | drift | method | right at the end | moves of the drifted | of innocents | accuracy of the drifted "
    "| without migration | Δ‰ | without migration |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
)


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    add_config(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results and table.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--drifts", nargs="+", choices=DRIFTS, default=list(DRIFTS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    base = read_config(options)
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "results.jsonl")
    lines = [
        row(base, results, world, drift, method, options.seeds)
        for world, drift, method in product(options.worlds, options.drifts, options.methods)
    ]
    text = "\n".join([HEAD, *lines])
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except SettingsError as error:
        sys.exit(f"benchmarks.drift_table: {error}")
