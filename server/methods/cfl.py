"""CFL: one group that is split in two whenever its sites pull in different directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.methods.cfl import Settings
from common.state import flat_parameters
from server.clustering import bipartition
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Federation, GroupingRule, Move, Remembered
from server.migration import Evidence

# A member is waited for as long as it takes to be drawn so many times on average: at any share of sites per round, one
# that answers is missed with a chance below e^-5, under 1%.
_PATIENCE = 5


@dataclass(frozen=True)
class _Change:
    """A site's latest update, float32[p], made as a member of `group` from `samples` samples.

    `since` is the round of its first update that the group has not been judged by.
    """

    group: int
    samples: int
    since: int
    values: NDArray[np.float32]


class RecursiveBipartition(GroupingRule):
    """Splits a group of more than two sites when |mean change| < epsilon 1 and max |change| > epsilon 2 (CFL).

    Then the group as a whole stands still while some of its sites do not: they disagree. The mean is weighted by
    samples, as the group's model is.

    A group is judged by the latest update of every member since it was last judged, so that a member that is not drawn
    in a round neither forces nor prevents a split. Nobody is waited for without end: a member that was not heard while
    it should have been drawn `_PATIENCE` times is silent. The group is then judged by the others, and at once from
    then on, until the silent one is heard again. Nobody knows where a silent member belongs: it stays in the group.
    Updates are kept from one round to the next only while somebody is waited for.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._settings = config.of(Settings)
        self._train = config.train
        self._latest: dict[str, _Change] = {}
        self._silent: set[str] = set()

    def observe(self, contribution: Contribution) -> None:
        """Keep the update, once the rounds without splits are over."""
        round_number, site, group = contribution.round_number, contribution.site, contribution.group
        if round_number > self._settings.after:
            values = flat_parameters(contribution.after)
            values -= flat_parameters(contribution.before)
            since = self._latest[site].since if self._is_known(site, group) else round_number
            self._latest[site] = _Change(group, contribution.samples, since, values)
            self._silent.discard(site)

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Split every group whose sites disagree. The part of the first site heard, by name, keeps group and model."""
        home = {site: group for group, members in groups.items() for site in members}
        # What a site sent as a member of a group that it has left says nothing any more.
        self._latest = {site: change for site, change in self._latest.items() if home.get(site) == change.group}
        self._silent &= home.keys()
        for group, members in groups.items():
            sites = sorted(site for site in members if site in self._latest)
            missing = set(members) - set(sites)
            if not sites or (missing - self._silent and not self._is_overdue(round_number, sites, len(members))):
                continue
            self._silent |= missing
            changes = [self._latest.pop(site) for site in sites]
            mean, longest = _norms(changes)
            if len(sites) <= 2 or mean >= self._settings.mean_norm or longest <= self._settings.max_norm:
                continue
            labels = bipartition([change.values for change in changes])
            # Positions among this group's updates become sites here; they mean nothing outside of it.
            leaving = tuple(site for site, label in zip(sites, labels, strict=True) if label == 1)
            reason = f"mean update {mean:.3g} < {self._settings.mean_norm:g}, longest {longest:.3g}"
            yield Move(leaving, group, None, Evidence(reason=reason))

    def _is_known(self, site: str, group: int) -> bool:
        return site in self._latest and self._latest[site].group == group

    def _is_overdue(self, round_number: int, heard: Sequence[str], size: int) -> bool:
        """Whether a group of `size` members has waited long enough since the first of them was heard."""
        drawn = self._train.fraction * size
        if self._train.draw == "group":
            drawn = max(1, round(drawn))
        waited = round_number - min(self._latest[site].since for site in heard) + 1
        return waited * drawn >= _PATIENCE * size

    def state(self) -> Remembered:
        """The updates that wait for the rest of their group, and who is not waited for."""
        return {
            "latest": [{"site": site, **vars(change)} for site, change in sorted(self._latest.items())],
            "silent": sorted(self._silent),
        }

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._latest = {
            entry["site"]: _Change(entry["group"], entry["samples"], entry["since"], entry["values"])
            for entry in state["latest"]
        }
        self._silent = set(state["silent"])


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
    about=(
        "When nothing is known before training and there is time: FedAvg until sites pull apart, then two groups, "
        "and so on. A model down and up; the server keeps one update per site. A group is judged once all of its "
        "members have been heard; under partial participation the latest update of each counts. A member that was "
        "not heard while it should have been drawn five times (5 rounds, or 5 / `train.fraction`) is no longer "
        "waited for until it is heard again; when the others are split, it stays in the group. Batch norm's "
        "statistics are no part of an update. The norms 0.4 and 1.6 are the paper's and fit its networks and "
        "learning rates: with others a group may never be split."
    ),
    paper="Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under "
    "Privacy Constraints, 2020",
    summary="one group that is split in two whenever its sites pull in different directions",
    family="clustered while training",
    partition=OneGroup(),
    clustered=False,
    grouping=RecursiveBipartition,
    settings_used=("cfl.after", "cfl.mean_norm", "cfl.max_norm"),
)

METHODS = (METHOD,)
