"""CFL: one group that is split in two whenever its sites pull in different directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from server import checkpoint
from server.clustering import bipartition
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Regrouping, TrainingRule


@dataclass(frozen=True)
class _Change:
    """A site's latest update, float32[p], made as a member of `group` from `samples` samples."""

    group: int
    samples: int
    values: NDArray[np.float32]


class RecursiveBipartition(TrainingRule):
    """Splits a group of more than two sites when |mean change| < epsilon 1 and max |change| > epsilon 2 (CFL).

    Then the group as a whole stands still while some of its sites do not: they disagree. The mean is weighted by
    samples, as the group's model is. A group is judged by the latest update of every member since it was formed, so a
    member that does not train in a round neither forces nor prevents a split; updates are kept from one round to the
    next only while somebody is missing.
    """

    def __init__(self, config: Config) -> None:
        self._settings = config.split
        self._latest: dict[str, _Change] = {}

    def observe(self, round_number: int, contribution: Contribution) -> None:
        """Keep the update, once the rounds without splits are over."""
        # Imported late: this module is loaded by commands that need no torch, which comes along.
        from common.models import flat_parameters

        if round_number > self._settings.after:
            values = flat_parameters(contribution.after)
            values -= flat_parameters(contribution.before)
            self._latest[contribution.site] = _Change(contribution.group, contribution.samples, values)

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> list[Regrouping]:
        """Split every group whose sites disagree. The part of the first site by name keeps group and model."""
        regroupings = []
        for group, members in groups.items():
            sites = sorted(members)
            changes = [self._latest[site] for site in sites if self._is_known(site, group)]
            if len(changes) < len(sites):
                continue
            for site in sites:
                del self._latest[site]
            mean, longest = _norms(changes)
            if len(sites) <= 2 or mean >= self._settings.mean_norm or longest <= self._settings.max_norm:
                continue
            labels = bipartition([change.values for change in changes])
            # Positions among this group's updates become sites here; they mean nothing outside of it.
            leaving = tuple(site for site, label in zip(sites, labels, strict=True) if label == 1)
            reason = f"mean update {mean:.3g} < {self._settings.mean_norm:g}, longest {longest:.3g}"
            regroupings.append(Regrouping(leaving, None, reason))
        return regroupings

    def _is_known(self, site: str, group: int) -> bool:
        return site in self._latest and self._latest[site].group == group

    def state(self) -> checkpoint.State:
        """The updates that wait for the rest of their group."""
        return {"latest": [{"site": site, **vars(change)} for site, change in sorted(self._latest.items())]}

    def restore(self, state: checkpoint.State) -> None:
        """Remember what an earlier `state` said."""
        self._latest = {
            entry["site"]: _Change(entry["group"], entry["samples"], entry["values"]) for entry in state["latest"]
        }


def _norms(changes: Sequence[_Change]) -> tuple[float, float]:
    """Length of the mean change weighted by samples, and of the longest change."""
    total = sum(change.samples for change in changes)
    mean = np.zeros(len(changes[0].values))
    for change in changes:
        mean += change.values * np.float64(change.samples / total)
    longest = max(float(np.linalg.norm(change.values.astype(np.float64))) for change in changes)
    return float(np.linalg.norm(mean)), longest


METHOD = Method(
    name="cfl",
    title="CFL",
    paper="Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under "
    "Privacy Constraints, 2020",
    summary="one group that is split in two whenever its sites pull in different directions",
    fingerprint=None,
    distance=None,
    partition=OneGroup(),
    clustered=False,
    training=RecursiveBipartition,
    settings_used=("split.after", "split.mean_norm", "split.max_norm"),
)
