"""FL+HC: FedAvg for some rounds, then hierarchical clustering of all sites' updates, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.methods.fl_hc import DIRECTION, START, Settings
from common.state import State, flat_parameters
from server.clustering import agglomerate, agglomerate_auto, cosine_distance, mean_vector, norm_distance
from server.methods.memory import check_answers
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Federation, GroupingRule, Move, Opening, Placement, Remembered
from server.migration import Evidence

Vector = NDArray[np.float32]


class HierarchicalOnce(GroupingRule):
    """After n rounds all sites train from w_n; complete linkage of their Δ_i groups them for good (algorithm 1).

    Every group goes on from w_n. A site that was silent then, or comes later, is asked until it answers: it trains from
    w_n as the others did, and joins the group whose mean Δ is nearest.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._settings = config.of(Settings)
        # w_n, once the sites are grouped, and the mean change of each group.
        self._start: State = {}
        self._means: dict[int, Vector] = {}
        self._waiting: set[str] = set()
        self._founding: Vector | None = None

    def open(self) -> Opening | None:
        """All start the same; what they will be asked for must fit."""
        if self._settings.rounds < self.config.rounds:
            # An answer, and its vector.
            each = 2 * flat_parameters(self.federation.draw(0)).nbytes
            check_answers("fl-hc", len(self.federation.members), each, "a smaller network")
        return None

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Group everybody after round n; later, who was missing."""
        if not self._means and self._settings.rounds <= round_number < self.config.rounds:
            yield from self._group(round_number, groups)
        elif self._waiting:
            home = {site: group for group, sites in groups.items() for site in sites}
            late = sorted(self._waiting & home.keys())
            for site, change in self._asked(late, round_number, few=True).items():
                self._waiting.discard(site)
                group, _ = self._nearest(change)
                if group != home[site]:
                    yield Move((site,), home[site], group, Evidence(reason="its late update is nearest to the group's"))

    def _group(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        ((origin, everybody),) = groups.items()
        self._start = self.federation.models[origin]
        changes = self._asked(everybody, round_number)
        sites = list(changes)
        if not sites:
            # Tried again after the next round.
            return
        self._waiting = set(everybody) - changes.keys()
        labels = self._labels([changes[site] for site in sites])
        for label in range(int(labels.max()) + 1):
            members = tuple(site for site, own in zip(sites, labels, strict=True) if own == label)
            mean = mean_vector([changes[site] for site in members])
            if label == 0:
                self._means[origin] = mean
            else:
                self._founding = mean
                yield Move(members, origin, None, Evidence(reason="grouped by their updates"))

    def settle(self, move: Move, group: int, round_number: int) -> None:
        """Note the number of a group that was founded."""
        if move.target is None and self._founding is not None:
            self._means[group], self._founding = self._founding, None

    def place(self, site: str, round_number: int) -> Placement | None:
        """A newcomer trains from w_n, too."""
        if not self._means:
            return None
        answer = self._asked([site], round_number, few=True)
        if site not in answer:
            self._waiting.add(site)
            return None
        return Placement(*self._nearest(answer[site]))

    def _asked(self, sites: Sequence[str], round_number: int, *, few: bool = False) -> dict[str, Vector]:
        start = {START: self._start}
        answers = self.federation.ask(DIRECTION, start, lambda _: None, sites=sites, round_number=round_number, few=few)
        return {site: flat_parameters(answer[DIRECTION]) for site, answer in answers.items()}

    def _nearest(self, change: Vector) -> tuple[int, float]:
        """The group with the nearest mean change, and the margin to the runner-up in [0, 1]."""
        groups = sorted(self._means)
        apart = self._distance([*(self._means[group] for group in groups), change])[-1, :-1]
        order = np.argsort(apart, kind="stable")
        second = apart[order[1]] if len(groups) > 1 else 0.0
        margin = 1.0 - apart[order[0]] / second if second > 0 else float(len(groups) == 1)
        return groups[int(order[0])], float(margin)

    def _distance(self, changes: Sequence[Vector]) -> NDArray[np.float64]:
        kind = self._settings.distance
        return cosine_distance(changes) if kind == "cosine" else norm_distance(changes, kind)

    def _labels(self, changes: Sequence[Vector]) -> NDArray[np.int64]:
        settings, distance = self.config.cluster, self._distance(changes)
        if settings.threshold:
            return agglomerate(distance, threshold=settings.threshold, linkage="complete")
        if settings.k:
            return agglomerate(distance, k=min(settings.k, len(changes)), linkage="complete")
        return agglomerate_auto(distance, k_max=settings.k_max, linkage="complete")[0]

    def state(self) -> Remembered:
        """w_n, the mean change of each group, and who is waited for."""
        return {
            "start": self._start,
            "means": {str(group): mean for group, mean in self._means.items()},
            "waiting": sorted(self._waiting),
        }

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._start = state["start"]
        self._means = {int(group): mean for group, mean in state["means"].items()}
        self._waiting = set(state["waiting"])


METHOD = Method(
    name="fl-hc",
    title="FL+HC",
    about=(
        "When nothing is known before training. After `fl_hc.rounds` rounds everybody trains `fl_hc.epochs` "
        "epochs once, whoever is drawn otherwise; the server holds two models per site meanwhile. Who was silent "
        "is asked again and joins the nearest mean change; a public version gives such sites all groups' models "
        "in one."
    ),
    paper="Briggs et al., Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on "
    "Non-IID Data, IJCNN 2020",
    summary="FedAvg for some rounds; then all sites are grouped once, by where a short training leads them",
    family="clustered while training",
    partition=OneGroup(),
    clustered=False,
    grouping=HierarchicalOnce,
    settings_used=("fl_hc.rounds", "fl_hc.epochs", "fl_hc.distance", "cluster.threshold", "cluster.k"),
)

METHODS = (METHOD,)
