"""From what the sites sent once to a mapping for each site and a model for each cluster (DC-CFL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.collaboration import Collaboration
from common.config import TrainSettings
from common.state import State
from server.collaboration.integration import Anchors, Matrix, gather, integrate, with_constant
from server.collaboration.training import Hidden, Job, scores, train_networks

# The paper's candidates, of which validation chooses.
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
HIDDEN: tuple[Hidden, ...] = ((64, 32), (32, 16))

Labels = NDArray[np.int64]
Members = tuple[int, ...]


@dataclass(frozen=True)
class Solution:
    """What the server found.

    Attributes
    ----------
    labels : int64[N]
        Cluster of each site, 0..K−1 numbered by first member.
    threshold
        t at which the tree was cut.
    hidden
        Widths of the networks' layers.
    validation
        Accuracy on the rows held out, by (t, hidden); empty where there was nothing to choose.
    mappings : float64[m̃ + 1, k] each
        G_i.
    models
        h of each cluster.
    ranks, conditions
        Of each site's anchors; see `Anchors`.
    """

    labels: Labels
    threshold: float
    hidden: Hidden
    validation: dict[tuple[float, Hidden], float]
    mappings: list[Matrix]
    models: dict[int, State]
    ranks: list[int]
    conditions: list[float]


def solve(
    sites: Mapping[str, Collaboration],
    groupings: Mapping[float, Labels],
    settings: TrainSettings,
    *,
    classes: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Solution:
    """Choose among groupings, integrate each cluster and train its model.

    Parameters
    ----------
    sites
        By name, in the order of the groupings' labels.
    groupings
        Candidate labels int64[N] by the threshold that gave them.
    settings
        Of SGD: lr, momentum, weight_decay, batch_size, epochs.
    classes, seed
        Of the run.
    progress
        Is told the share that is done.
    """
    problem = _Problem(list(sites), list(sites.values()), settings, classes, seed)
    # Equal groupings of several thresholds are one candidate, known by the smallest of them.
    distinct: dict[bytes, float] = {}
    for threshold in sorted(groupings):
        distinct.setdefault(groupings[threshold].tobytes(), threshold)
    thresholds = sorted(distinct.values())
    validation = problem.validate({t: _clusters(groupings[t]) for t in thresholds}, lambda share: progress(0.8 * share))
    # The first of equals: smaller clusters, wider networks.
    threshold, hidden = max(validation, key=lambda candidate: validation[candidate])
    clusters = _clusters(groupings[threshold])
    mappings: list[Matrix] = [np.empty(0)] * len(sites)
    jobs = []
    for members in clusters:
        for member, mapping in zip(members, problem.mappings(members), strict=True):
            mappings[member] = mapping
        jobs.append(problem.job(members, hidden))
    trained = problem.train(jobs, lambda share: progress(0.8 + 0.2 * share))
    return Solution(
        labels=groupings[threshold],
        threshold=threshold,
        hidden=hidden,
        validation=validation,
        mappings=mappings,
        models=dict(enumerate(trained)),
        ranks=problem.anchors.ranks,
        conditions=problem.anchors.conditions,
    )


class _Problem:
    """The sites' rows, and what is computed of them once."""

    def __init__(
        self, names: list[str], sites: list[Collaboration], settings: TrainSettings, classes: int, seed: int
    ) -> None:
        self._names, self._sites = names, sites
        self._settings, self._classes, self._seed = settings, classes, seed
        self.anchors: Anchors = gather([site.anchors for site in sites])
        self._held_out = [site.validates.astype(np.bool_) for site in sites]
        # As many as a row had columns, where sites drop one, and the constant.
        self._most_columns = max(site.rows.shape[1] for site in sites) + 2
        self._mappings: dict[Members, list[Matrix]] = {}

    def mappings(self, members: Members) -> list[Matrix]:
        """G_i of a cluster's members."""
        if members not in self._mappings:
            self._mappings[members] = integrate(self.anchors, members, self._most_columns)
        return self._mappings[members]

    def job(self, members: Members, hidden: Hidden) -> Job:
        """The training of a cluster's model on all of its rows."""
        rows, labels, _ = self._integrated(members)
        return Job(self._name(members), rows, labels, hidden)

    def train(self, jobs: list[Job], progress: Callable[[float], None]) -> list[State]:
        """Train networks side by side."""
        return train_networks(jobs, self._settings, classes=self._classes, seed=self._seed, progress=progress)

    def validate(
        self, candidates: Mapping[float, list[Members]], progress: Callable[[float], None]
    ) -> dict[tuple[float, Hidden], float]:
        """Accuracy of every candidate on the rows held out. A cluster of several candidates is trained once."""
        clusters = sorted({members for found in candidates.values() for members in found})
        jobs, parts = [], []
        for members in clusters:
            rows, labels, held_out = self._integrated(members)
            fit = rows[~held_out], labels[~held_out]
            parts.append((rows[held_out], labels[held_out]))
            jobs += [Job(self._name(members), *fit, hidden) for hidden in HIDDEN]
        states = iter(self.train(jobs, progress))
        hits: dict[tuple[Members, Hidden], int] = {}
        for members, (rows, labels) in zip(clusters, parts, strict=True):
            for hidden in HIDDEN:
                hits[members, hidden] = _hits(next(states), rows, labels)
        total = sum(int(held.sum()) for held in self._held_out)
        return {
            (threshold, hidden): sum(hits[members, hidden] for members in found) / max(total, 1)
            for threshold, found in candidates.items()
            for hidden in HIDDEN
        }

    def _integrated(self, members: Members) -> tuple[NDArray[np.float32], Labels, NDArray[np.bool_]]:
        """X̂ = [f_i(X_i), 1] G_i of all members, their labels, and which rows are held out for validation."""
        pieces = [
            (with_constant(self._sites[member].rows) @ mapping).astype(np.float32)
            for member, mapping in zip(members, self.mappings(members), strict=True)
        ]
        return (
            np.concatenate(pieces),
            np.concatenate([self._sites[member].labels for member in members]),
            np.concatenate([self._held_out[member] for member in members]),
        )

    def _name(self, members: Members) -> str:
        return ",".join(self._names[member] for member in members)


def _clusters(labels: Labels) -> list[Members]:
    return [tuple(np.flatnonzero(labels == label).tolist()) for label in range(int(labels.max()) + 1)]


def _hits(state: State, rows: NDArray[np.float32], labels: Labels) -> int:
    """Rows that a network puts into their class. Where training diverged there are none: NaN would pass as class 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = scores(state, rows)
    return int(((found.argmax(axis=1) == labels) & np.isfinite(found).all(axis=1)).sum())
