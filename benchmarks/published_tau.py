"""FedCM's migration rule as published, for every threshold: `python -m benchmarks.published_tau`.

The paper does not give τ. 20 sites of handwritten digits in five groups with disjoint labels, a network of one hidden
layer; after 20 of 40 rounds two pairs of sites exchange their data. For each τ: how many of the four are in the right
group in the end, and how many sites that did not change were moved, before the drift and after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.config import MigrationSettings
from server.migration import GuardedRule, PublishedRule, Verdict
from tests.support.arrays_federation import ArraysFederation

TAUS = (-0.95, -0.9, -0.8, -0.7, -0.6, -0.4, -0.2, 0.0, 0.3)
ROUNDS, DRIFT = 40, 21
DRIFTED = ("000", "001", "002", "003")


@dataclass
class Course:
    """What happened in one run: who moved before and after the drift, who is right in the end, the accuracy."""

    before: set[str]
    after: set[str]
    moves: int
    right: int
    accuracy: float


def play(rule: PublishedRule | GuardedRule | None, seed: int) -> Course:
    federation = ArraysFederation(seed=seed)
    groups = dict(federation.kind)
    course = Course(set(), set(), 0, 0, 0.0)
    for number in range(1, ROUNDS + 1):
        if number == DRIFT:
            federation.swap("000", "001")
            federation.swap("002", "003")
        changes = federation.train(groups)
        verdicts: Iterable[Verdict | None] = ()
        if isinstance(rule, PublishedRule):
            verdicts = rule.moves(changes, groups)
        elif rule is not None:
            verdicts = (rule.by_direction(suspect) for suspect in rule.suspects(number, changes, groups))
        for verdict in verdicts:
            if verdict is None:
                continue
            group = max(federation.models) + 1 if verdict.target is None else verdict.target
            federation.models.setdefault(group, federation.models[verdict.origin])
            if group != verdict.origin:
                (course.before if number < DRIFT else course.after).add(verdict.site)
                course.moves += 1
            groups[verdict.site] = group
            if isinstance(rule, GuardedRule):
                rule.settle(verdict, group, number)
    course.right = sum(groups[site] == federation.kind[site] for site in DRIFTED)
    course.accuracy = federation.accuracy(groups)
    return course


def row(name: str, runs: Sequence[Course]) -> str:
    count = len(DRIFTED) * len(runs)
    innocent = [
        sum(len(moved - set(DRIFTED)) for moved in side)
        for side in ([run.before for run in runs], [run.after for run in runs])
    ]
    accuracy = sum(run.accuracy for run in runs) / len(runs)
    right, moves = sum(run.right for run in runs), sum(run.moves for run in runs)
    return f"| {name} | {right} of {count} | {moves} | {innocent[0]} | {innocent[1]} | {accuracy:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    seeds = parser.parse_args().seeds
    print("| τ | drifted sites right | moves | innocents moved before the drift | after it | accuracy at the end |")
    print("|---|---:|---:|---:|---:|---:|")
    for tau in TAUS:
        print(row(f"{tau:g}", [play(PublishedRule(MigrationSettings(tau=tau)), seed) for seed in seeds]), flush=True)
    print(row("guarded rule", [play(GuardedRule(MigrationSettings()), seed) for seed in seeds]))
    print(row("no migration", [play(None, seed) for seed in seeds]))


if __name__ == "__main__":
    main()
